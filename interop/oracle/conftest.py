"""Fixtures of the oracle: RabbitMQ, started once for all cases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final
from uuid import uuid4

import pytest

from bench.servers import RabbitMq, ServerError
from interop.oracle.steps import Case
from interop.oracle.wire import run

#: Cases that RabbitMQ answers at the same time.
CLIENTS: Final = 8

#: The version whose answers the cases were compared with: Debian's.
VERSION: Final = "3.10."


@pytest.fixture(scope="session")
def rabbitmq_port(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    if request.config.getoption("--against") != "trivium":
        pytest.skip("RabbitMQ is compared with Trivium alone")
    server = RabbitMq(tmp_path_factory.mktemp("oracle"))
    try:
        version = server.version()
    except ServerError as error:
        pytest.skip(str(error))
    if not version.startswith(VERSION):
        pytest.skip(f"RabbitMQ {version} is here; its answers may differ from those of {VERSION}x")
    server.start()
    yield server.addresses["amqp"][1]
    server.stop()


@pytest.fixture(scope="session")
def heard(
    request: pytest.FixtureRequest, rabbitmq_port: int
) -> Iterator[dict[str, Future[list[str]]]]:
    """What RabbitMQ answers, by the name of the case; each build of Trivium is compared with it.

    The cases run side by side, since RabbitMQ takes seconds to refuse some clients.
    """
    with ThreadPoolExecutor(CLIENTS) as pool:
        found: dict[str, Future[list[str]]] = {}
        for item in request.session.items:
            case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
            if isinstance(case, Case) and case.name not in found:
                word = f"r{uuid4().hex}"
                found[case.name] = pool.submit(run, rabbitmq_port, case.opening, case.steps, word)
        yield found
