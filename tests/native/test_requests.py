"""FETCH, groups, metadata and topology."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.support.authentication import permit
from tests.support.core import message
from tests.support.native import Client, Received, Server, entry, publish
from tests.support.steps import living, steps
from tests.support.storages import ColdLog, HeldStorage
from trivium.common.values import unpack
from trivium.config import AuthConfig, Config, Listen
from trivium.routing.exchanges import Binding
from trivium.runtime.adapter import OUTPUT_HIGH_WATER
from trivium.security.permissions import grants_of
from trivium.security.scram import make_keys, parse_keys
from trivium.streams.records import PAYLOAD, RecordBatch
from trivium.vhost.policy_walk import MAX_PER_TURN
from trivium.vhost.settings import VirtualHostSettings
from trivium_native.server import lists
from trivium_native.server.fetching import Fetch
from trivium_native.server.options import NativeOptions
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})

MAX_FETCHES = NativeOptions().max_fetches


@pytest.fixture
def server() -> Server:
    """A stream with three batches: offsets 0 and 1, 2, 3."""
    server = Server(None, CONFIG)
    stream = server.vhost.declare_stream("s")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    for turn in ([b"0", b"1"], [b"2"], [b"3"]):
        add(server, *turn)
    return server


@pytest.fixture
def client(server: Server) -> Client:
    return server.open()


def add(server: Server, *payloads: bytes) -> None:
    server.broker.now_ms += 10
    server.open().send(frames.PUBLISH, 0, publish(*[entry(payload) for payload in payloads]))


def fetch(client: Client, offset: int | str, **fields: Any) -> list[Received]:
    return client.send(frames.FETCH, 8, {"stream": "s", "partition": 0, "offset": offset} | fields)


def fetched(received: list[Received]) -> tuple[int, int, list[tuple[int, list[bytes | None]]]]:
    """First offset, high watermark, and (base offset, payloads) per batch."""
    ((kind, correlation, body),) = received
    assert (kind, correlation) == (frames.FETCHED, 8)
    first, mark, count, _ = struct.unpack_from("<qqII", body)
    at = 24
    batches: list[tuple[int, list[bytes | None]]] = []
    for _ in range(count):
        base, size, _ = struct.unpack_from("<qII", body, at)
        # Aligned, so that the columns are.
        assert at % 8 == 0
        view = RecordBatch(body[at + 16 : at + 16 + size])
        batches.append((base, [view.binary(PAYLOAD, row) for row in range(view.count)]))
        at += 16 + (size + 7) // 8 * 8
    assert at == len(body)
    return first, mark, batches


# FETCH


@pytest.mark.parametrize(
    ("offset", "before"), [(0, [0, 0, 0]), (1, [1, 0, 0]), ("last", [0]), ("first", [0, 0, 0])]
)
def test_a_fetch_says_how_many_offsets_come_before_the_one_asked_for(
    client: Client, offset: int | str, before: list[int]
) -> None:
    ((_, _, body),) = fetch(client, offset)
    found: list[int] = []
    at = 24
    while at < len(body):
        _, size, each = struct.unpack_from("<qII", body, at)
        found.append(each)
        at += 16 + (size + 7) // 8 * 8
    assert found == before


def test_fetch_hands_over_whole_batches(client: Client) -> None:
    assert fetched(fetch(client, 1)) == (0, 4, [(0, [b"0", b"1"]), (2, [b"2"]), (3, [b"3"])])
    assert fetched(fetch(client, 3)) == (0, 4, [(3, [b"3"])])


@pytest.mark.parametrize(
    ("word", "bases"), [("first", [0, 2, 3]), ("last", [3]), ("next", []), ("newest", None)]
)
def test_fetch_knows_words_for_offsets(client: Client, word: str, bases: list[int] | None) -> None:
    received = client.send(frames.FETCH, 8, {"stream": "s", "partition": 0, "offset": word})
    if bases is None:
        assert (received[0][0], msgpack.unpackb(received[0][2])[0]) == (frames.ERROR, 300)
    else:
        assert [base for base, _ in fetched(received)[2]] == bases


def test_fetch_of_few_bytes_gives_one_batch(client: Client) -> None:
    assert fetched(fetch(client, 0, max_bytes=0)) == (0, 4, [(0, [b"0", b"1"])])


def test_a_stored_batch_is_handed_over_as_it_is(server: Server, client: Client) -> None:
    ((_, _, body),) = fetch(client, 3)
    stored = server.vhost.stream("s").partitions[0].read(3, 1)[0][1]
    assert body[24 + 16 : 24 + 16 + len(stored)] == stored


def test_at_the_end_fetch_without_waiting_is_empty(client: Client) -> None:
    assert fetched(fetch(client, 4)) == (0, 4, [])


def test_a_waiting_fetch_is_answered_when_records_come(server: Server, client: Client) -> None:
    assert fetch(client, 4, max_wait_ms=1000) == []
    add(server, b"4")
    assert fetched(client.take()) == (0, 5, [(4, [b"4"])])
    add(server, b"5")
    assert client.take() == []


def test_a_waiting_fetch_is_answered_when_its_time_has_passed(
    server: Server, client: Client
) -> None:
    assert fetch(client, 4, max_wait_ms=500) == []
    assert server.driver.wakes[-1] == server.broker.elapsed_ms + 500
    server.advance(0.499)
    assert client.take() == []
    server.advance(0.001)
    assert fetched(client.take()) == (0, 4, [])


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_answers_no_waiting_fetch(
    server: Server, client: Client, step: int
) -> None:
    assert fetch(client, 4, max_wait_ms=500) == []
    server.step_clock(step)
    server.advance(0.499)
    assert client.take() == []
    server.advance(0.001)
    assert fetched(client.take()) == (0, 4, [])


def test_several_fetches_have_their_own_times(server: Server, client: Client) -> None:
    other = server.open()
    assert fetch(client, 4, max_wait_ms=300) == []
    assert fetch(other, 4, max_wait_ms=200) == []
    assert (
        other.send(
            frames.FETCH, 9, {"stream": "s", "partition": 0, "offset": 4, "max_wait_ms": 400}
        )
        == []
    )
    answered = []
    for _ in range(4):
        server.advance(0.1)
        answered.append((len(client.take()), len(other.take())))
    assert answered == [(0, 0), (0, 1), (1, 0), (0, 1)]


def test_fetch_waits_for_min_bytes(server: Server, client: Client) -> None:
    size = len(server.vhost.stream("s").partitions[0].read(3, 1)[0][1])
    assert fetch(client, 3, min_bytes=2 * size, max_wait_ms=1000) == []
    add(server, b"4")
    assert fetched(client.take()) == (0, 5, [(3, [b"3"]), (4, [b"4"])])


def test_fetch_sees_only_what_is_durable() -> None:
    server = Server(HeldStorage(), CONFIG)
    server.vhost.bind(
        server.vhost.exchange("amq.topic"), Binding(server.vhost.declare_stream("s"), b"#")
    )
    client = server.open()
    add(server, b"0")
    assert fetch(client, 0, max_wait_ms=1000) == []
    server.sync()
    assert fetched(client.take()) == (0, 1, [(0, [b"0"])])


def test_a_slow_reader_gets_its_fetch_when_it_takes_output(server: Server, client: Client) -> None:
    client.connection.is_writable = False
    assert fetch(client, 3) == []
    client.connection.resume_writing()
    server.settle()
    assert fetched(client.take()) == (0, 4, [(3, [b"3"])])


@pytest.mark.parametrize("offset", [5, 1 << 62])
def test_an_offset_beyond_the_end_is_out_of_range(client: Client, offset: int) -> None:
    ((kind, _, body),) = fetch(client, offset)
    code, _, detail = msgpack.unpackb(body)
    assert (kind, code) == (frames.ERROR, 304)
    assert detail == {"first_offset": 0, "high_watermark": 4}


def test_records_that_are_gone_are_out_of_range(server: Server, client: Client) -> None:
    server.vhost.stream("s").partitions[0].log.truncate(2)
    ((_, _, body),) = fetch(client, 0)
    assert msgpack.unpackb(body)[2] == {"first_offset": 2, "high_watermark": 4}


def test_another_incarnation_is_refused(server: Server, client: Client) -> None:
    incarnation = server.vhost.stream("s").incarnation
    assert len(fetched(fetch(client, 0, incarnation=incarnation))[2]) == 3
    ((_, _, body),) = fetch(client, 0, incarnation="0" * 16)
    code, _, detail = msgpack.unpackb(body)
    assert (code, detail) == (305, {"incarnation": incarnation})


def test_a_fetch_of_a_deleted_stream_is_refused(server: Server, client: Client) -> None:
    assert fetch(client, 4, max_wait_ms=1000) == []
    server.open().ask(frames.DELETE, kind="stream", name="s")
    ((kind, correlation, body),) = client.take()
    assert (kind, correlation, msgpack.unpackb(body)[0]) == (frames.ERROR, 8, 301)
    assert fetch(client, 0)[0][0] == frames.ERROR


def test_the_number_of_waiting_fetches_is_bounded(client: Client) -> None:
    for _ in range(MAX_FETCHES):
        assert fetch(client, 4, max_wait_ms=1000) == []
    ((_, _, body),) = fetch(client, 4, max_wait_ms=1000)
    assert msgpack.unpackb(body)[0] == 403


def test_a_lost_connection_waits_no_more(server: Server, client: Client) -> None:
    gc.collect()
    before = living(Fetch)
    assert fetch(client, 4, max_wait_ms=1000) == []
    assert living(Fetch) == before + 1
    client.lose()
    # Nothing refers to it: not the stream, which nothing was added to, nor what waits for times.
    assert living(Fetch) == before
    server.advance(1)


@pytest.mark.pure
def test_fetches_that_wait_for_as_many_times_are_answered_in_linear_steps() -> None:
    def answers(count: int) -> int:
        server = Server(None, CONFIG)
        server.vhost.declare_stream("s")
        client = server.open()
        for number in range(count):
            assert fetch(client, 0, max_wait_ms=100 + number) == []

        def wait() -> None:
            for number in range(count):
                server.broker.now_ms += 1 if number else 100
                server.broker.end_turn()

        taken = steps(wait)
        assert [kind for kind, _, _ in client.take()] == [frames.FETCHED] * count
        return taken

    assert answers(200) < 4 * 1.2 * answers(50)


@pytest.mark.pure
def test_fetches_of_a_slow_reader_are_answered_in_linear_steps() -> None:
    """Each answer fills the output, and others wait for records meanwhile."""

    def answers(count: int) -> int:
        server = Server(None, Config(listen={"native": Listen(0)}))
        stream = server.vhost.declare_stream("s")
        server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
        add(server, b"x" * OUTPUT_HIGH_WATER)
        client = server.open()
        for _ in range(count):
            assert fetch(client, 1, max_wait_ms=60_000) == []
        client.connection.is_writable = False
        for _ in range(count):
            assert fetch(client, 0) == []
        client.connection.is_writable = True
        found: list[int] = []

        def read() -> None:
            for _ in range(count):
                client.connection.flushed()
                found.append(len(client.connection.take_output()))

        taken = steps(read)
        assert all(found)
        server.advance(60)
        assert len(client.take()) == count
        return taken

    assert answers(100) < 4 * 1.2 * answers(25)


def test_fetches_that_are_due_together_are_answered_in_their_order(
    server: Server, client: Client
) -> None:
    for correlation, wait in ((11, 300), (12, 100), (13, 200)):
        fields = {"stream": "s", "partition": 0, "offset": 4, "max_wait_ms": wait}
        assert client.send(frames.FETCH, correlation, fields) == []
    server.broker.now_ms += 300
    server.broker.end_turn()
    assert [correlation for _, correlation, _ in client.take()] == [11, 12, 13]


def test_answered_fetches_are_not_kept_until_their_times(server: Server, client: Client) -> None:
    for number in range(4):
        for _ in range(MAX_FETCHES):
            assert fetch(client, 4 + number, max_wait_ms=60_000) == []
        add(server, b"x")
        assert len(client.take()) == MAX_FETCHES
    fetches = [each for each in gc.get_objects() if isinstance(each, Fetch)]
    kept = [each for each in fetches if each.connection is client.connection]
    assert len(kept) <= 2 * MAX_FETCHES
    assert fetch(client, 8, max_wait_ms=1) == []
    server.advance(0.001)
    assert len(client.take()) == 1


def test_a_fetch_of_a_deleted_stream_is_refused_once(server: Server, client: Client) -> None:
    """It waits for records and, once its time has come, for room in the output."""
    assert fetch(client, 4, max_wait_ms=100) == []
    client.connection.is_writable = False
    server.advance(0.1)
    server.vhost.delete_stream("s")
    client.connection.resume_writing()
    server.settle()
    assert [kind for kind, _, _ in client.take()] == [frames.ERROR]


def make_cold(server: Server) -> ColdLog:
    partition = server.vhost.stream("s").partitions[0]
    cold = ColdLog(partition.log)
    partition.log = cold
    return cold


def test_a_fetch_of_old_records_waits_for_the_disk(server: Server, client: Client) -> None:
    cold = make_cold(server)
    assert fetch(client, 2) == []
    assert [offset for offset, _ in cold.loads] == [2]
    # Its time has passed already, and that does not answer it early.
    server.advance(0.01)
    assert client.take() == []
    cold.finish_load()
    server.settle()
    assert fetched(client.take()) == (0, 4, [(2, [b"2"])])


def test_a_client_may_leave_while_the_disk_is_read(server: Server, client: Client) -> None:
    cold = make_cold(server)
    assert fetch(client, 2) == []
    client.lose()
    cold.finish_load()
    server.settle()
    assert client.take() == []


def test_offsets_by_time_look_into_old_records(server: Server, client: Client) -> None:
    cold = make_cold(server)
    fields = {"stream": "s", "partition": 0, "timestamp": server.broker.now_ms}
    received = client.send(frames.OFFSETS, 4, fields)
    while not received:
        cold.finish_load()
        server.settle()
        received = client.take()
    assert received == [(frames.OK, 4, msgpack.packb({"offset": 3}))]
    assert cold.loads


FROM_A_TIME = {"subscription": 1, "mode": "log", "stream": "s", "partition": 0, "credit": 9}


def finish_search(server: Server, cold: ColdLog) -> None:
    while cold.waiting:
        cold.finish_load()
        server.settle()


def lose_stream(server: Server) -> None:
    server.vhost.delete_stream("s")


def lose_permission(server: Server) -> None:
    server.broker.permissions.set_user("guest", grants_of({"/": {"read": "none"}}, {}, [], []))
    server.broker.logins.permissions_changed("guest")


@pytest.mark.parametrize(("lose", "code"), [(lose_stream, 301), (lose_permission, 201)])
def test_a_subscription_that_is_cancelled_while_it_seeks_is_answered_once(
    server: Server, client: Client, lose: Callable[[Server], None], code: int
) -> None:
    cold = make_cold(server)
    fields = FROM_A_TIME | {"timestamp": server.broker.now_ms}
    assert client.send(frames.SUBSCRIBE, 4, fields) == []
    lose(server)
    server.settle()
    finish_search(server, cold)
    ((kind, correlation, body),) = client.take()
    assert (kind, correlation, msgpack.unpackb(body)[0]) == (frames.ERROR, 4, code)
    assert not client.connection.subscriptions


def test_of_a_subscription_that_wants_no_answer_the_cancellation_is_told(
    server: Server, client: Client
) -> None:
    cold = make_cold(server)
    fields = FROM_A_TIME | {"timestamp": server.broker.now_ms}
    assert client.send(frames.SUBSCRIBE, 0, fields) == []
    lose_permission(server)
    server.settle()
    finish_search(server, cold)
    assert [received[0] for received in client.take()] == [frames.CANCELLED]


def test_who_unsubscribes_while_it_seeks_has_both_answered_in_their_order(
    server: Server, client: Client
) -> None:
    cold = make_cold(server)
    fields = FROM_A_TIME | {"timestamp": server.broker.now_ms}
    assert client.send(frames.SUBSCRIBE, 4, fields) == []
    received = client.send(frames.UNSUBSCRIBE, 5, {"subscription": 1})
    assert [each[:2] for each in received] == [(frames.ERROR, 4), (frames.OK, 5)]
    finish_search(server, cold)
    assert client.take() == []


def test_the_number_of_searches_is_bounded(server: Server, client: Client) -> None:
    make_cold(server)
    fields = {"stream": "s", "partition": 0, "timestamp": server.broker.now_ms}
    for _ in range(MAX_FETCHES):
        assert client.send(frames.OFFSETS, 4, fields) == []
    assert client.refused(frames.OFFSETS, **fields) == 403


# Groups, metadata, offsets


def test_commit_and_committed(server: Server, client: Client) -> None:
    group = {"group": "g", "stream": "s"}
    incarnation = server.vhost.stream("s").incarnation
    none = {"incarnation": incarnation, "partitions": [[0, None, 4, None]]}
    assert client.ask(frames.COMMITTED, **group) == none
    assert client.ask(frames.COMMIT, **group, offsets=[[0, 3]], incarnation=incarnation) == {}
    some = {"incarnation": incarnation, "partitions": [[0, 3, 1, None]]}
    assert client.ask(frames.COMMITTED, **group) == some
    client.ask(frames.DELETE, kind="group", name="g")
    assert client.ask(frames.COMMITTED, **group) == none


def test_a_commit_is_answered_once_it_is_durable() -> None:
    server = Server(HeldStorage(), CONFIG)
    server.vhost.declare_stream("s")
    client = server.open()
    fields = {"group": "g", "stream": "s", "offsets": [[0, 0]]}
    assert client.send(frames.COMMIT, 1, fields) == []
    server.sync()
    assert client.take() == [(frames.OK, 1, b"\x80")]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offsets": [[0, 5]]}, 302),
        ({"offsets": [[1, 0]]}, 301),
        ({"offsets": [[0, -1]]}, 300),
        ({"offsets": [[0, True]]}, 300),
        ({"offsets": [[0]]}, 300),
        ({"offsets": {0: 1}}, 300),
        ({"offsets": [[0, 1]], "incarnation": "x"}, 305),
        ({"offsets": [[0, 1]], "group": ""}, 302),
        ({"offsets": [[0, 1]], "generation": 3}, 300),
    ],
)
def test_a_wrong_commit_is_refused(
    server: Server, client: Client, fields: dict[str, Any], code: int
) -> None:
    assert client.refused(frames.COMMIT, **({"group": "g", "stream": "s"} | fields)) == code
    assert server.vhost.groups.names() == []


def test_metadata_describes_streams(server: Server, client: Client) -> None:
    other = server.vhost.declare_stream("other", 2, {"x-queue-type": "stream"})
    described = {
        "name": "other",
        "incarnation": other.incarnation,
        "arguments": {"x-queue-type": "stream"},
        "partitions": [[0, 0, 0], [0, 0, 0]],
    }
    assert client.ask(frames.METADATA, streams=["other"]) == {"streams": [described]}
    first, second = client.ask(frames.METADATA)["streams"]
    assert first["partitions"] == [[0, 4, 4]]
    assert second == described
    assert client.refused(frames.METADATA, streams=["none"]) == 301


def test_metadata_tells_durable_from_appended() -> None:
    server = Server(HeldStorage(), CONFIG)
    stream = server.vhost.declare_stream("s")
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(stream, b"#"))
    add(server, b"0")
    (found,) = server.open().ask(frames.METADATA)["streams"]
    assert found["partitions"] == [[0, 0, 1]]


def test_offsets_by_time(server: Server, client: Client) -> None:
    times = [server.broker.now_ms - 20, server.broker.now_ms - 10, server.broker.now_ms]
    fields = {"stream": "s", "partition": 0}
    found = [
        client.ask(frames.OFFSETS, **fields, timestamp=at)["offset"]
        for at in (0, times[0], times[0] + 1, times[1], times[2], times[2] + 1)
    ]
    assert found == [0, 0, 2, 2, 3, 4]


# Topology


def test_declare_bind_unbind_delete(server: Server, client: Client) -> None:
    vhost = server.vhost
    assert client.ask(frames.DECLARE, kind="exchange", name="x", type="fanout") == {"name": "x"}
    queue = {"name": "q", "messages": 0, "consumers": 0}
    assert client.ask(frames.DECLARE, kind="queue", name="q") == queue
    client.ask(frames.BIND, exchange="amq.topic", kind="exchange", name="x", pattern=b"a.#")
    client.ask(frames.BIND, exchange="x", kind="queue", name="q")
    client.ask(frames.BIND, exchange="x", kind="stream", name="s")
    client.send(frames.PUBLISH, 0, publish(entry(b"y", b"a.b")))
    assert len(vhost.queues["q"]) == 1
    client.ask(frames.UNBIND, exchange="x", kind="queue", name="q")
    client.send(frames.PUBLISH, 0, publish(entry(b"y", b"a.b")))
    assert len(vhost.queues["q"]) == 1
    assert client.ask(frames.PURGE, name="q") == {"messages": 1}
    assert client.refused(frames.DELETE, kind="exchange", name="x", if_unused=True) == 302
    client.ask(frames.DELETE, kind="exchange", name="x")
    client.send(frames.PUBLISH, 0, publish(entry(), entry()))
    assert client.ask(frames.DELETE, kind="queue", name="q") == {"messages": 0}
    assert (set(vhost.queues), "x" in vhost.exchanges) == (set(), False)


def test_a_made_up_queue_name_is_told(server: Server, client: Client) -> None:
    found = client.ask(frames.DECLARE, kind="queue", durable=False)["name"]
    assert found.startswith("amq.gen-")
    assert found in server.vhost.queues


def test_declare_stream_tells_its_incarnation(server: Server, client: Client) -> None:
    found = client.ask(frames.DECLARE, kind="stream", name="t", partitions=3)
    stream = server.vhost.stream("t")
    assert found == {"name": "t", "incarnation": stream.incarnation}
    assert len(stream.partitions) == 3


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (frames.DECLARE, {"kind": "stream", "name": "s", "partitions": 2}, 302),
        (frames.DECLARE, {"kind": "stream", "name": "t", "arguments": {"x-max-age": "1 day"}}, 302),
        (frames.DECLARE, {"kind": "stream", "name": "t", "durable": True}, 300),
        (frames.DECLARE, {"kind": "exchange", "name": "x", "type": "weird"}, 302),
        (frames.DECLARE, {"kind": "exchange", "name": "amq.x"}, 201),
        (frames.DECLARE, {"kind": "queue", "name": "amq.q"}, 201),
        (frames.DELETE, {"kind": "stream", "name": "none"}, 301),
        (frames.DELETE, {"kind": "queue", "name": "none"}, 301),
        (frames.DELETE, {"kind": "group", "name": "none"}, 301),
        (frames.DELETE, {"kind": "stream", "name": "s", "if_empty": True}, 300),
        (frames.BIND, {"exchange": "none", "kind": "stream", "name": "s"}, 301),
        (frames.BIND, {"exchange": "amq.topic", "kind": "stream", "name": "none"}, 301),
        (frames.BIND, {"exchange": "", "kind": "stream", "name": "s"}, 201),
        (
            frames.BIND,
            {
                "exchange": "amq.headers",
                "kind": "stream",
                "name": "s",
                "arguments": {"x-match": "some"},
            },
            300,
        ),
        (frames.PURGE, {"name": "none"}, 301),
    ],
)
def test_what_the_topology_does_not_allow(
    client: Client, kind: int, fields: dict[str, Any], code: int
) -> None:
    assert client.refused(kind, **fields) == code
    assert not client.is_closed


def test_a_declaration_is_answered_once_it_is_durable() -> None:
    server = Server(HeldStorage(), CONFIG)
    client = server.open()
    assert client.send(frames.DECLARE, 1, {"kind": "stream", "name": "s"}) == []
    server.sync()
    ((kind, correlation, _),) = client.take()
    assert (kind, correlation) == (frames.OK, 1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            frames.SUBSCRIBE,
            {"subscription": 1, "mode": "queue", "queue": "amq.mqtt-session.c", "credit": 1},
        ),
        (frames.DECLARE, {"kind": "queue", "name": "amq.mqtt-session.c"}),
        (frames.DELETE, {"kind": "queue", "name": "amq.mqtt-session.c"}),
        (frames.PURGE, {"name": "amq.mqtt-session.c"}),
        (
            frames.BIND,
            {"kind": "queue", "name": "amq.mqtt-session.c", "exchange": "amq.topic"},
        ),
    ],
)
def test_a_session_of_another_protocol_is_out_of_reach(
    server: Server, client: Client, kind: int, fields: dict[str, Any]
) -> None:
    queue = server.vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter="mqtt")
    queue.put(message(b"secret"), b"")
    assert client.refused(kind, **fields) == 201
    assert (len(queue), len(queue.consumers)) == (1, 0)


def test_nothing_is_published_into_a_session(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter="mqtt")
    forged = entry(key=b"amq.mqtt-session.c", exchange=b"", flags=5 | 16)
    ((kind, _, body),) = client.send(frames.PUBLISH, 5, publish(forged))
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 306)
    assert len(queue) == 0


# Policies


def test_policies_are_set_listed_and_deleted(server: Server, client: Client) -> None:
    queue = server.vhost.declare_queue("q")
    policy = {
        "name": "p",
        "pattern": "^q",
        "definition": {"max-length": 5},
        "apply_to": "queues",
        "priority": 2,
    }
    assert client.ask(frames.SET_POLICY, **policy) == {}
    assert queue.settings.max_length == 5
    assert client.ask(frames.LIST_POLICIES) == {"policies": [policy]}
    assert client.ask(frames.DELETE_POLICY, name="p") == {}
    assert queue.settings.max_length == -1
    assert client.ask(frames.LIST_POLICIES) == {"policies": []}


def test_a_policy_is_answered_once_it_is_durable() -> None:
    server = Server(HeldStorage())
    client = server.open()
    fields = {"name": "p", "pattern": "q", "definition": {"max-length": 5}}
    assert client.send(frames.SET_POLICY, 5, fields) == []
    server.sync()
    assert [(kind, number) for kind, number, _ in client.take()] == [(frames.OK, 5)]


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (frames.SET_POLICY, {"name": "p", "pattern": "q"}, 302),
        (frames.SET_POLICY, {"name": "p", "pattern": "(", "definition": {"max-length": 1}}, 302),
        (frames.SET_POLICY, {"name": "p", "pattern": "q", "definition": {"cats": 1}}, 302),
        (frames.SET_POLICY, {"name": "", "pattern": "q", "definition": {"max-length": 1}}, 302),
        (frames.SET_POLICY, {"pattern": "q", "definition": {"max-length": 1}}, 300),
        (frames.SET_POLICY, {"name": "p", "pattern": 5, "definition": {"max-length": 1}}, 300),
        (frames.SET_POLICY, {"name": "p", "pattern": "q", "definition": [1]}, 300),
        (
            frames.SET_POLICY,
            {"name": "p", "pattern": "q", "definition": {"max-length": 1}, "apply_to": "cats"},
            300,
        ),
        (
            frames.SET_POLICY,
            {"name": "p", "pattern": "q", "definition": {"max-length": 1}, "cats": 1},
            300,
        ),
        (frames.DELETE_POLICY, {"name": "none"}, 301),
        (frames.DELETE_POLICY, {}, 300),
        (frames.LIST_POLICIES, {"name": "p"}, 300),
    ],
)
def test_wrong_requests_about_policies(
    client: Client, kind: int, fields: dict[str, Any], code: int
) -> None:
    assert client.refused(kind, **fields) == code


def test_users_are_added_listed_and_deleted(server: Server, client: Client) -> None:
    permit(server.broker, "ann")
    ask = frames.MANAGE_USERS
    assert client.ask(ask, action="add", name="ann", password=b"one", tags=["monitoring"]) == {}
    common = {"vhost": "/", "scram": False}
    guest = {"name": "guest", "tags": ["administrator"], "configured": True, **common}
    ann = {"name": "ann", "tags": ["monitoring"], "configured": False, **common}
    assert client.ask(ask, action="list") == {"users": [ann, guest]}
    fields = {"username": "ann", "password": b"one"}
    assert server.greet().send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
    assert client.ask(ask, action="passwd", name="ann", password=b"two") == {}
    assert server.greet().send(frames.AUTH, 2, fields)[0][0] == frames.ERROR
    assert client.ask(ask, action="tags", name="ann", tags=[]) == {}
    assert client.ask(ask, action="list")["users"][0]["tags"] == []
    assert client.ask(ask, action="delete", name="ann") == {}
    assert client.ask(ask, action="list") == {"users": [guest]}


def test_a_virtual_host_is_made_changed_and_described(server: Server, client: Client) -> None:
    ask = frames.MANAGE_PERMISSIONS
    fields = {"description": "of the farm", "tags": ["t"], "default_queue_type": "quorum"}
    assert client.ask(ask, action="create-vhost", name="farm", **fields) == {}
    assert client.ask(ask, action="create-vhost", name="farm", description="other") == {}
    expected = {"name": "farm", **fields, "description": "other", "limits": {}}
    # That of events is in the default one alone.
    counts = {
        "exchanges": len(server.vhost.exchanges) - 1,
        "queues": 0,
        "streams": 0,
        "suspended": 0,
    }
    counts["connections"] = 0
    (row,) = client.ask(ask, action="describe-vhost", name="farm")["rows"]
    assert row == {**expected, **counts}
    (before,) = client.ask(ask, action="describe-vhost", name="/")["rows"]
    server.open()
    (first,) = client.ask(ask, action="describe-vhost", name="/")["rows"]
    assert first["connections"] == before["connections"] + 1
    assert client.ask(ask, action="list-vhosts")["rows"][1] == expected
    assert client.refused(ask, action="describe-vhost", name="barn") == 301
    assert client.refused(ask, action="create-vhost", name="*") == 302
    wrong = {"name": "farm", "default_queue_type": "x"}
    assert client.refused(ask, action="create-vhost", **wrong) == 302


def test_queues_have_the_virtual_hosts_default_type(server: Server, client: Client) -> None:
    declare = {"kind": "queue", "name": "q"}
    for kind, expected in (("quorum", "quorum"), ("stream", None)):
        settings = VirtualHostSettings(default_queue_type=kind)
        server.broker.virtual_hosts.declare("/", settings)
        client.ask(frames.DECLARE, **declare)
        assert server.vhost.queues["q"].arguments.get("x-queue-type") == expected
        client.ask(frames.DELETE, **declare)


def test_the_virtual_host_of_a_user_is_one_that_exists(server: Server, client: Client) -> None:
    ask = frames.MANAGE_USERS
    client.ask(ask, action="add", name="ann", password=b"one")
    assert client.refused(ask, action="vhost", name="ann", vhost="farm") == 301
    server.broker.virtual_hosts.declare("farm")
    assert client.ask(ask, action="vhost", name="ann", vhost="farm") == {}
    assert client.ask(ask, action="list")["users"][0]["vhost"] == "farm"


def test_a_password_has_scram_keys_where_that_is_on() -> None:
    auth = AuthConfig(scram=True, scram_iterations=4096)
    server = Server(HeldStorage(), config=Config(auth=auth))
    client = server.open()
    client.send(frames.MANAGE_USERS, 5, {"action": "add", "name": "ann", "password": b"one"})
    refused = {"action": "passwd", "name": "ann", "password": b"\xff"}
    assert [found[0] for found in client.send(frames.MANAGE_USERS, 6, refused)] == [frames.ERROR]
    # In the row that the answer waits for.
    server.sync()
    assert [found[:2] for found in client.take()] == [(frames.OK, 5)]
    (row,) = (row for key, row in server.broker.storage.table("users").items() if key == b"ann")
    stored, tags, settings = unpack(row)
    found = parse_keys(settings["scram"])
    assert (stored[:9], tags) == ("$argon2id", [])
    users = client.ask(frames.MANAGE_USERS, action="list")["users"]
    # guest, of the configuration, and ann.
    assert [user["scram"] for user in users] == [True, True]
    assert found == make_keys(b"one", 4096, found.salt)


def test_keys_are_made_listed_and_taken_back(server: Server, client: Client) -> None:
    permit(server.broker, "ann")
    ask = frames.MANAGE_USERS
    client.ask(ask, action="add", name="ann", password=b"one", tags=["monitoring"])
    made = client.ask(ask, action="add-key", name="ann", scopes=["monitoring"])
    key = made.pop("key")
    assert made == {"id": key.split("_")[1], "user": "ann", "scopes": ["monitoring"]} | {
        "expires_ms": 0
    }
    assert client.ask(ask, action="list-keys") == {"keys": [made]}
    assert client.ask(ask, action="list-keys", name="guest") == {"keys": []}
    fields = {"password": key.encode()}
    assert server.greet().send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
    client.ask(ask, action="delete-key", id=made["id"])
    assert server.greet().send(frames.AUTH, 2, fields)[0][0] == frames.ERROR


@pytest.mark.parametrize(
    ("scopes", "reason"),
    [
        ([], "leave them out"),
        (["policymaker"], "no tag 'policymaker'"),
        (["read:v/a read:v/b"], "VHOST/NAME[/KEY]"),
    ],
)
def test_a_key_that_permits_nothing_or_too_much_is_refused(
    client: Client, scopes: list[str], reason: str
) -> None:
    ask = frames.MANAGE_USERS
    client.ask(ask, action="add", name="ann", password=b"one", tags=["monitoring"])
    fields = {"action": "add-key", "name": "ann", "scopes": scopes}
    ((kind, _, body),) = client.send(ask, 9, fields)
    assert kind == frames.ERROR
    assert reason in unpack(body)[1]
    assert client.ask(ask, action="list-keys") == {"keys": []}


def test_a_change_of_users_is_answered_once_it_is_durable() -> None:
    server = Server(HeldStorage())
    client = server.open()
    requests: tuple[dict[str, Any], ...] = (
        {"action": "add", "name": "ann", "password": b"x"},
        {"action": "passwd", "name": "ann", "password": b"y"},
        {"action": "tags", "name": "ann", "tags": ["a"]},
        {"action": "add-key", "name": "ann"},
        {"action": "delete", "name": "ann"},
    )
    for number, fields in enumerate(requests, 5):
        assert client.send(frames.MANAGE_USERS, number, fields) == []
        server.sync()
        assert [found[:2] for found in client.take()] == [(frames.OK, number)]


def test_a_client_is_not_read_while_a_password_is_hashed(server: Server) -> None:
    client = server.open()
    server.driver.is_pool_busy = True
    fields = {"action": "add", "name": "ann", "password": b"x"}
    assert client.send(frames.MANAGE_USERS, 5, fields) == []
    assert client.send(frames.MANAGE_USERS, 6, {"action": "list"}) == []
    server.driver.is_pool_busy = False
    server.driver.blocking.pop()()
    server.settle()
    assert [found[:2] for found in client.take()] == [(frames.OK, 5), (frames.OK, 6)]


def test_a_client_that_leaves_while_its_password_is_hashed_has_changed_nothing(
    server: Server,
) -> None:
    client = server.open()
    server.driver.is_pool_busy = True
    client.send(frames.MANAGE_USERS, 5, {"action": "add", "name": "ann", "password": b"x"})
    client.lose()
    server.driver.blocking.pop()()
    assert server.broker.users.find("ann") is None


def test_two_that_add_one_user_at_a_time(server: Server) -> None:
    first, second = server.open(), server.open()
    server.driver.is_pool_busy = True
    fields = {"action": "add", "name": "ann", "password": b"x"}
    first.send(frames.MANAGE_USERS, 5, fields)
    second.send(frames.MANAGE_USERS, 6, fields)
    for work in server.driver.blocking:
        work()
    server.settle()
    assert [found[:2] for found in first.take()] == [(frames.OK, 5)]
    assert [found[:2] for found in second.take()] == [(frames.ERROR, 6)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"action": "steal"}, 300),
        ({"action": "add", "name": "ann"}, 300),
        ({"action": "add", "name": "ann", "password": b""}, 302),
        ({"action": "add", "name": "guest", "password": b"x"}, 302),
        ({"action": "add", "name": "ann", "password": b"x" * 1025}, 300),
        ({"action": "passwd", "name": "guest", "password": b"x"}, 201),
        ({"action": "passwd", "name": "nobody", "password": b"x"}, 301),
        ({"action": "delete", "name": "guest"}, 201),
        ({"action": "delete", "name": "nobody"}, 301),
        ({"action": "tags", "name": "nobody"}, 301),
        ({"action": "add-key", "name": "nobody"}, 301),
        ({"action": "delete-key", "id": "nothing"}, 301),
        ({"action": "list", "name": "x"}, 300),
    ],
)
def test_wrong_requests_about_users(client: Client, fields: dict[str, Any], code: int) -> None:
    assert client.refused(frames.MANAGE_USERS, **fields) == code


def test_only_an_administrator_manages_users(server: Server, client: Client) -> None:
    permit(server.broker, "ann")
    client.ask(frames.MANAGE_USERS, action="add", name="ann", password=b"x", tags=["monitoring"])
    for login in ({"username": "ann", "password": b"x"}, {}):
        other = server.greet()
        other.send(frames.AUTH, 2, login)
        for action in ("add", "passwd", "tags", "delete", "list", "add-key", "list-keys"):
            assert other.refused(frames.MANAGE_USERS, action=action, name="ann") == 201


def test_a_refusal_may_be_for_a_change_that_is_not_durable_and_waits_for_it() -> None:
    server = Server(HeldStorage())
    server.vhost.declare_queue("q", durable=True)
    server.sync()
    first, second = server.open(), server.open()
    assert first.send(frames.DELETE, 7, {"kind": "queue", "name": "q"}) == []
    assert second.send(frames.DELETE, 8, {"kind": "queue", "name": "q"}) == []
    server.sync()
    assert [(kind, correlation) for kind, correlation, _ in second.take()] == [(frames.ERROR, 8)]
    refused = second.send(frames.DELETE, 9, {"kind": "queue", "name": "q"})
    assert [(kind, correlation) for kind, correlation, _ in refused] == [(frames.ERROR, 9)]


def test_a_policy_is_answered_once_it_is_in_force_everywhere(server: Server) -> None:
    client = server.open()
    queues = [server.vhost.declare_queue(f"q{n}") for n in range(2 * MAX_PER_TURN + 1)]
    policy = {"name": "p", "pattern": "^q", "definition": {"max-length": 3}}
    answers: list[tuple[int, int]] = []
    for kind, fields in ((frames.SET_POLICY, policy), (frames.DELETE_POLICY, {"name": "p"})):
        answers += [answer[:2] for answer in client.send(kind, kind, fields)]
        assert answers == []
        reading = [not client.transport.is_paused]
        while not answers:
            assert len({queue.settings.max_length for queue in queues}) == 2
            server.settle()
            answers += [answer[:2] for answer in client.take()]
        assert answers == [(frames.OK, kind)]
        assert [*reading, not client.transport.is_paused] == [False, True]
        assert len({queue.settings.max_length for queue in queues}) == 1
        answers.clear()


def test_a_client_may_go_before_its_policy_is_in_force(server: Server) -> None:
    client = server.open()
    queues = [server.vhost.declare_queue(f"q{n}") for n in range(2 * MAX_PER_TURN + 1)]
    policy = {"name": "p", "pattern": "^q", "definition": {"max-length": 3}}
    assert client.send(frames.SET_POLICY, 1, policy) == []
    client.lose()
    for _ in range(3):
        server.settle()
    assert {queue.settings.max_length for queue in queues} == {3}
    assert client.take() == []


def test_a_list_that_is_too_long_for_one_reply_is_refused(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        name = f"user {number}"
        server.broker.users.add(name, "p")
        server.broker.authentication.api_keys.add(name, None, 0)
        server.broker.logins.limits.set(name, {"max-queues": 3})
        grants = grants_of({}, {"/": {"amq.topic": {"write": "a", "read": "a"}}}, [], [])
        server.broker.permissions.set_user(name, grants)
    asked = [(frames.MANAGE_USERS, "list"), (frames.MANAGE_USERS, "list-keys")]
    for action in ("list", "list-topics", "list-limits"):
        asked.append((frames.MANAGE_PERMISSIONS, action))
    for kind, action in asked:
        assert client.ask(kind, action=action)
    for most, limit in (("MAX_ROWS", 2), ("MAX_FIELDS_BYTES", 8)):
        with monkeypatch.context() as changed:
            changed.setattr(lists, most, limit)
            refused = [client.refused(kind, action=action) for kind, action in asked]
            assert refused == [403] * len(asked)
