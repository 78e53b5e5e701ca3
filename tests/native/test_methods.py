"""The two clients have the same operations, with the same parameters, for people and for mypy."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from mypy import api

from trivium_native.client import Client
from trivium_native.client.methods import Method, Operations
from trivium_native.sync import SyncClient

ROOT = Path(__file__).resolve().parents[2]
NAMES = [name for name, value in vars(Operations).items() if isinstance(value, Method)]

#: What is said to ``publish`` differs: one message in a coroutine, or many that block together.
DIFFERENT = {"publish"}


def public(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted((public(Client) & public(SyncClient)) - DIFFERENT))
def test_what_both_clients_have_takes_the_same(name: str) -> None:
    both = [inspect.signature(getattr(client, name)) for client in (Client, SyncClient)]
    assert both[0] == both[1]


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_says_what_it_takes_and_gives(name: str) -> None:
    method = getattr(SyncClient, name)
    signature = inspect.signature(method)
    assert next(iter(signature.parameters)) == "self"
    for parameter in list(signature.parameters.values())[1:]:
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        assert parameter.annotation is not parameter.empty
    assert "Operation" not in str(signature.return_annotation)
    assert inspect.getdoc(method)


def test_a_method_of_a_client_is_described_too() -> None:
    client = SyncClient.__new__(SyncClient)
    assert client.fetch.__name__ == "fetch"
    assert client.fetch.__doc__ == SyncClient.fetch.__doc__
    of_class = list(inspect.signature(SyncClient.fetch).parameters.values())
    assert list(inspect.signature(client.fetch).parameters.values()) == of_class[1:]
    asynchronous = Client.__new__(Client)
    assert inspect.iscoroutinefunction(asynchronous.fetch)
    assert str(inspect.signature(asynchronous.fetch)) == str(inspect.signature(client.fetch))
    assert str(inspect.signature(client.fetch)).endswith("-> 'Fetched'")


PROGRAM = """
from trivium_native.client import Client
from trivium_native.sync import SyncClient

async def asynchronous(client: Client) -> None:
    reveal_type(await client.fetch("s", 0, "first", max_wait=1.5))
    reveal_type(await client.declare_queue(exclusive=True))
    await client.fetch("s")
    await client.fetch("s", 0, 0, max_weight=1)
    await client.bind("queue", "q", pattern=1)

def blocking(client: SyncClient) -> None:
    reveal_type(client.fetch("s", 0, 5))
    reveal_type(client.commit("g", "s", {0: 1}))
    client.fetch("s", "0", 0)
    client.purge()
"""
FOUND = [
    'Revealed type is "trivium_native.client.values.Fetched"',
    'Revealed type is "trivium_native.client.values.QueueInfo"',
    "Too few arguments",
    'Unexpected keyword argument "max_weight"',
    'Argument "pattern" has incompatible type "int"; expected "bytes | str"',
    'Revealed type is "trivium_native.client.values.Fetched"',
    'Revealed type is "None"',
    'Argument 2 has incompatible type "str"; expected "int"',
    "Too few arguments",
]


def test_mypy_knows_the_operations_of_both_clients() -> None:
    arguments = ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    output, problems, _ = api.run([*arguments, "--no-pretty", "-c", PROGRAM])
    assert problems == ""
    lines = output.splitlines()
    assert len(lines) == len(FOUND), output
    for line, expected in zip(lines, FOUND, strict=True):
        assert expected in line
