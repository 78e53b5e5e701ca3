"""Clients in the broker's own process. What they can do is in ``test_client``, with all others."""

from __future__ import annotations

import asyncio
import gc
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.live import TIMEOUT, running_inside
from trivium.config import EVERYTHING, UserConfig
from trivium.runtime.broker import Broker
from trivium.security.permissions import grants_of
from trivium_native import connect, errors, inside
from trivium_native.client.client import connection_of
from trivium_native.client.receiving import LIVE_BACKLOG
from trivium_native.values import Publication

WRITER = UserConfig(
    password="p", permissions={"/": {"configure": "", "write": ".*", "read": "^q$"}}
)


async def test_without_a_user_it_is_the_owner() -> None:
    async with running_inside() as broker, broker.client() as client:
        await client.declare_queue("q")
        await client.add_user("new", "password", tags=["administrator"])
        assert "new" in {user.name for user in broker.users.all()}
        (connection,) = broker.connections
        assert connection.identity.name == "(owner)"
        assert connection.peer.address == "inside"


async def test_a_user_has_its_own_permissions_and_shows_no_password() -> None:
    async with running_inside(users={"u": WRITER}) as broker, broker.client() as owner:
        await owner.declare_queue("q")
        async with broker.client(username="u") as client:
            with pytest.raises(errors.AccessRefused, match="user 'u'"):
                await client.declare_queue("other")
            await client.publish(b"1", exchange="", routing_key="q")
            async with client.consume("q") as deliveries:
                assert (await anext(deliveries)).payload == b"1"


@pytest.mark.parametrize("name", ["nobody", "(owner)", ""])
async def test_a_user_that_there_is_not(name: str) -> None:
    async with running_inside() as broker:
        with pytest.raises(errors.AuthenticationFailed):
            async with broker.client(username=name):
                pass


async def test_a_user_that_is_deleted_has_to_go() -> None:
    async with running_inside() as broker, broker.client() as owner:
        await owner.add_user("u", "password")
        broker.permissions.set_user("u", grants_of(EVERYTHING, {}, [], []))
        async with broker.client(username="u") as client, client.subscribe() as messages:
            await owner.set_password("u", "another")
            await client.declare_queue("q")
            await owner.delete_user("u")
            with pytest.raises(errors.NativeError, match="credentials do not hold"):
                await anext(messages)


def declare(broker: Broker, vhost: str) -> None:
    broker.virtual_hosts.declare(vhost)


async def test_another_virtual_host() -> None:
    async with running_inside() as broker:
        assert broker.server is not None
        broker.server.driver.call(partial(declare, broker, "v"))
        async with broker.client(vhost="v") as client, broker.client() as other:
            await client.declare_queue("q")
            with pytest.raises(errors.NotFound):
                await other.purge("q")
        with pytest.raises(errors.NotFound, match="no such"):
            async with broker.client(vhost="no such"):
                pass


async def test_what_the_broker_does_not_take_yet_waits_in_the_program() -> None:
    """Requests wait once the transport is full: neither side's memory grows."""
    async with running_inside() as broker, broker.client(window=8) as client:
        await client.declare_queue("q", arguments={"x-max-length": 1})
        transport = connection_of(client).transport
        assert transport is not None
        largest = 0

        async def publish() -> None:
            nonlocal largest
            await client.publish(bytes(1 << 20), exchange="", routing_key="q")
            largest = max(largest, transport.get_write_buffer_size())

        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
            for _ in range(64):
                tasks.create_task(publish())
        assert largest <= 9 << 20


async def test_live_messages_that_nobody_reads_are_dropped_and_counted() -> None:
    async with (
        running_inside() as broker,
        broker.client() as client,
        client.subscribe("a") as messages,
    ):
        count = LIVE_BACKLOG + 10
        await client.publish_batch([Publication(payload=b"x", routing_key="a")] * count)
        assert messages.dropped == 10


async def test_a_confirmed_publish_is_on_the_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running_inside(data) as broker, broker.client() as client:
        await client.declare_queue("q")
        await client.publish(b"kept", exchange="", routing_key="q")
        # As a power cut would leave it.
        shutil.copytree(data, tmp_path / "copy")
    async with running_inside(tmp_path / "copy") as broker:
        # Before any client comes: stored messages are read from the start on.
        assert list(broker.adapters) == ["native"]
        async with broker.client() as client, client.consume("q") as deliveries:
            assert (await anext(deliveries)).payload == b"kept"


async def test_a_broker_that_has_stopped_has_no_clients() -> None:
    async with running_inside() as broker, broker.client() as client:
        pass
    with pytest.raises(errors.ConnectionFailed):
        await client.declare_queue("q")
    with pytest.raises(errors.ConnectionFailed, match="stopped"):
        async with broker.client():
            pass


async def test_a_client_is_told_that_the_broker_stops() -> None:
    async with running_inside() as broker:
        context = broker.client()
        client = await context.__aenter__()
    with pytest.raises(errors.ShuttingDown):
        await client.declare_queue("q")
    await context.__aexit__(None, None, None)


async def test_another_loop_is_refused() -> None:
    async with running_inside() as broker:

        async def connect() -> None:
            async with broker.client():
                pass

        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, connect())


async def test_several_brokers_of_one_process_have_nothing_in_common() -> None:
    async with (
        running_inside() as one,
        running_inside() as two,
        one.client() as client,
        two.client() as other,
    ):
        await client.declare_queue("q")
        with pytest.raises(errors.NotFound):
            await other.purge("q")


async def visit(broker: Broker) -> None:
    async with broker.client() as client:
        await client.declare_queue("q")
        await client.publish(bytes(1 << 20), exchange="", routing_key="q")
        async with client.consume("q") as deliveries:
            await deliveries.ack(await anext(deliveries), wait=True)


async def test_nothing_is_left_of_a_client_that_has_left() -> None:
    """Without a collection of cycles: those of the broker's side are its own to break."""
    names = {"InsideTransport", "SocketDriver", "NativeConnection"}

    def there() -> dict[int, object]:
        return {id(each): each for each in gc.get_objects() if type(each).__qualname__ in names}

    gc.collect()
    # Of other tests.
    before = there()
    gc.disable()
    try:
        async with running_inside() as broker:
            await visit(broker)
            for _ in range(20):
                await asyncio.sleep(0)
            assert broker.server is not None
            assert broker.server.sockets == set()
            assert [each for at, each in there().items() if at not in before] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("window", [0, -1])
async def test_a_window_without_room_is_refused(window: int) -> None:
    async with running_inside() as broker:
        with pytest.raises(ValueError, match="window"):
            async with broker.client(window=window):
                pass
    with pytest.raises(ValueError, match="window"):
        connect("trivium://localhost", window=window)


async def test_a_credit_without_room_is_refused() -> None:
    async with running_inside() as broker, broker.client() as client:
        await client.declare_queue("q")
        await client.declare_stream("s")
        for block in (
            client.consume("q", credit=0),
            client.poller("q", credit=0),
            client.read("s", credit=0),
            client.join("g", ["s"], credit=0),
        ):
            with pytest.raises(errors.InvalidArgument, match="credit"):
                async with block:
                    pass


async def test_numbers_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    async with running_inside() as broker, broker.client() as client:
        await client.declare_stream("s")
        await client.declare_queue("q")
        with pytest.raises(errors.InvalidArgument, match="too large"):
            await client.commit("g", "s", {0: 2**70})
        for time in ("x", float("inf"), float("nan")):
            with pytest.raises(errors.InvalidArgument, match="no number of seconds"):
                async with client.consume("q", ack_timeout=time):
                    pass
            with pytest.raises(errors.InvalidArgument, match="no number of seconds"):
                await client.fetch("s", 0, 0, max_wait=time)
        assert (await client.metadata(["s"]))[0].name == "s"


async def test_a_client_is_there_until_it_is_closed() -> None:
    async with running_inside() as broker:
        client = await broker.client()
        other = await inside.connect(broker)
        await client.declare_queue("q")
        assert (await other.declare_queue("q")).name == "q"
        assert len(broker.connections) == 2
        await client.close()
        await other.close()
        with pytest.raises(errors.ConnectionFailed, match="closed"):
            await client.declare_queue("q")
        async with await broker.client() as third:
            await third.declare_queue("q")
        with pytest.raises(errors.ConnectionFailed, match="closed"):
            await third.declare_queue("q")
