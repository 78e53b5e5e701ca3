"""The two clients have the same operations, with the same parameters, for people and for mypy."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from mypy import api

from tests.support.live import running
from trivium_native import inside
from trivium_native.client import Client, connect
from trivium_native.client.blocking import (
    BlockingBatches,
    BlockingDeliveries,
    BlockingGroupConsumer,
    BlockingLiveMessages,
    BlockingPolled,
    BlockingPublisher,
)
from trivium_native.client.consumer import GroupConsumer
from trivium_native.client.methods import Method, Operations
from trivium_native.client.publisher import Publisher
from trivium_native.client.receiving import Batches, Deliveries, LiveMessages, Polled
from trivium_native.sync import SyncClient
from trivium_native.sync import connect as connect_sync

ROOT = Path(__file__).resolve().parents[2]
NAMES = [name for name, value in vars(Operations).items() if isinstance(value, Method)]

#: What one has more than the other.
ONLY_ASYNCHRONOUS: set[str] = set()
ONLY_BLOCKING = {"publish_many"}
PROPERTIES = {"features", "max_request"}
#: What blocks are opened by both clients, and what each gives.
LIVING = {
    LiveMessages: BlockingLiveMessages,
    Deliveries: BlockingDeliveries,
    Polled: BlockingPolled,
    Batches: BlockingBatches,
    GroupConsumer: BlockingGroupConsumer,
    Publisher: BlockingPublisher,
}
#: that objects of the one have, and classes of the other
ATTRIBUTES = {"confirmed", "dropped", "members", "membership", "offset", "waiting_bytes"}
#: what the client calls of its own
INSIDE = {
    *("arrived", "called", "close", "end", "ended", "flags", "interrupted", "number", "producer"),
    *("put", "refused", "request", "resume", "room", "settlement", "some", "start", "started"),
    *("stop", "take"),
}


def public(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


def public_of(client: object) -> set[str]:
    """What an object has, with what it was given when it was made."""
    return {name for name in dir(client) if not name.startswith("_")}


def taken(function: object) -> dict[str, tuple[object, object, object]]:
    """The parameters: kind, type and default of each."""
    assert callable(function)
    return {
        name: (parameter.kind, str(parameter.annotation), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def test_the_clients_have_the_same_names_but_these() -> None:
    assert public(Client) - public(SyncClient) == ONLY_ASYNCHRONOUS
    assert public(SyncClient) - public(Client) == ONLY_BLOCKING


@pytest.mark.parametrize("name", sorted((public(Client) & public(SyncClient)) - PROPERTIES))
def test_what_both_clients_have_takes_the_same(name: str) -> None:
    assert taken(getattr(Client, name)) == taken(getattr(SyncClient, name))


@pytest.mark.parametrize(("one", "other"), LIVING.items(), ids=lambda found: found.__name__)
def test_what_lives_on_a_connection_has_the_same_in_both(one: type, other: type) -> None:
    names = public(one) - INSIDE | ({"resume"} if one is GroupConsumer else set())
    # A time limit is the event loop's matter in the other one.
    assert public(other) - {"get"} - ATTRIBUTES == names - ATTRIBUTES
    for name in names:
        if callable(getattr(one, name)):
            assert taken(getattr(one, name)) == taken(getattr(other, name))


async def test_what_objects_have_both_clients_have() -> None:
    async with running() as url, connect(url) as client:
        asynchronous = public_of(client)
        blocking = await asyncio.to_thread(names_of_blocking, url)
    assert (asynchronous - blocking, blocking - asynchronous) == (ONLY_ASYNCHRONOUS, ONLY_BLOCKING)


def names_of_blocking(url: str) -> set[str]:
    with connect_sync(url) as client:
        return public_of(client)


def test_connect_takes_the_same() -> None:
    assert taken(connect) == taken(connect_sync)


def documented(owner: type) -> list[str]:
    """What of a class has no words of its own, or of the one of its name, about what it does."""
    return sorted(name for name in public(owner) if not inspect.getdoc(getattr(owner, name)))


@pytest.mark.parametrize(
    "owner", [Client, SyncClient, *LIVING, *LIVING.values()], ids=lambda found: found.__name__
)
def test_everything_that_users_call_says_what_it_does(owner: type) -> None:
    inside = INSIDE if owner in LIVING else set()
    assert [name for name in documented(owner) if name not in inside] == []


def given(function: object) -> str:
    """What a call gives, once it is awaited or entered, without the names of the wrappers."""
    assert callable(function)
    result = str(inspect.signature(function).return_annotation).strip("'")
    for wrapper in ("AsyncIterator", "Iterator", "Coroutine", "asyncio.Future"):
        if result.startswith(f"{wrapper}["):
            result = result.removeprefix(f"{wrapper}[").removesuffix("]")
    return result


#: what a publisher's call gives, whose futures are of different kinds
CONFIRMED = {"None": "Confirmation"}
RESULTS = {one.__name__: other.__name__ for one, other in LIVING.items()} | CONFIRMED


@pytest.mark.parametrize("name", sorted((public(Client) & public(SyncClient)) - {"within"}))
def test_what_both_clients_have_gives_the_same(name: str) -> None:
    one, other = (getattr(client, name) for client in (Client, SyncClient))
    if callable(one):
        assert given(other) in (given(one), RESULTS.get(given(one)))


@pytest.mark.parametrize(("one", "other"), LIVING.items(), ids=lambda found: found.__name__)
def test_what_lives_on_a_connection_gives_the_same_in_both(one: type, other: type) -> None:
    for name in public(one) & public(other) - ATTRIBUTES:
        if callable(getattr(one, name)):
            found = given(getattr(one, name))
            assert given(getattr(other, name)) in (found, RESULTS.get(found)), name


def test_a_client_inside_the_broker_is_the_one_for_asyncio() -> None:
    """So all that it has, it has by the same names."""
    parameters = taken(inside.connect)
    everywhere = taken(connect)
    assert {name for name in parameters if name in everywhere} == {
        *("username", "name", "window", "timeout")
    }
    assert {name: parameters[name] for name in parameters if name in everywhere} == {
        name: everywhere[name] for name in parameters if name in everywhere
    }
    assert given(inside.connect) == given(connect)


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
from trivium_native.client import Client, connect
from trivium_native.sync import SyncClient
from trivium_native.sync import connect as connect_sync

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
