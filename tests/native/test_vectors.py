"""The test vectors as data: that they are whole, and that the broker and the clients agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgpack
import pytest

from tests.native import vectors
from tests.support.native import Client, Server, into, publish
from trivium.config import Config, Listen
from trivium_native.client import (
    group_operations,
    operations,
    permission_operations,
    topology_operations,
    user_operations,
)
from trivium_native.client.operations import Operation
from trivium_native.values import (
    AssignedPartition,
    GroupInfo,
    GroupOffset,
    Membership,
    PartitionInfo,
    PolicyInfo,
    Producer,
    Publication,
    QueueInfo,
    StreamInfo,
)
from trivium_native.wire import frames
from trivium_native.wire.errors import Malformed
from trivium_native.wire.frames import Frame, unpack
from trivium_native.wire.properties import decode_properties, encode_properties

ROWS = {row["name"]: row for row in vectors.rows()}


def body_of(name: str) -> Any:
    """What the msgpack body of a vector means."""
    return msgpack.unpackb(bytes.fromhex(ROWS[name]["frame"])[13:])


def test_each_frame_has_a_vector_from_each_side_that_sends_it() -> None:
    assert {(row["type"], row["from"]) for row in ROWS.values()} == vectors.directions()


def test_the_names_of_vectors_are_unique_and_answers_are_to_requests() -> None:
    assert len(ROWS) == len(vectors.rows())
    for row in ROWS.values():
        if "answers" in row:
            asked = ROWS[row["answers"]]
            assert (asked["from"], row["from"]) == ("client", "broker")
            assert asked["correlation"] == row["correlation"]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "fields" in row])
def test_a_vector_says_what_its_binary_body_means(name: str) -> None:
    row = ROWS[name]
    frame = bytes.fromhex(row["frame"])
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert (frame[4], int.from_bytes(frame[5:13], "little")) == (row["type"], row["correlation"])
    assert row["fields"] == vectors.as_json(vectors.binary_fields(row["type"], frame[13:]))


def test_each_vector_says_what_it_means() -> None:
    assert [name for name, row in ROWS.items() if ("body" in row) == ("fields" in row)] == []


def test_all_properties_are_written_and_read() -> None:
    encoded, meaning = vectors.all_properties()
    assert msgpack.unpackb(encoded, strict_map_key=False) == meaning
    assert sorted(meaning) == list(range(1, 17))
    found = decode_properties(encoded)
    names = [name for name in vectors.FIELDS if name != "headers"]
    told = {name: meaning[key] for key, name in enumerate(names, 1)}
    told["headers"] = [(name, value) for name, value in meaning[14]]
    assert vectors.fields_of(found) == told
    assert msgpack.unpackb(encode_properties(found), strict_map_key=False) == meaning


# The broker


def shape(value: Any) -> Any:
    """The names of fields and the types of values; of a list those of its first item."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def fits(told: Any, found: Any) -> bool:
    """Whether an answer looks as a vector says; nil may stand for what there is not.

    A field more is none that a client would mind.
    """
    if isinstance(told, dict) and isinstance(found, dict):
        return set(told) <= set(found) and all(fits(told[name], found[name]) for name in told)
    if isinstance(told, list) and isinstance(found, list):
        return all(fits(*pair) for pair in zip(told, found, strict=False))
    return told is None or found is None or type(told) is type(found)


def prepared() -> Server:
    """A broker with what the requests are about."""
    server = Server(None, Config(listen={"native": Listen(0)}))
    server.vhost.declare_queue("q", durable=True)
    server.vhost.declare_stream("s", 2)
    server.open().send(frames.PUBLISH, 0, publish(into(b"s", b"1"), into(b"s", b"2")))
    server.settle()
    return server


STATES: dict[str, Callable[[Server], Client]] = {
    "greeting": lambda server: server.connect(),
    "authentication": lambda server: server.greet(),
    "open": lambda server: server.open(),
}


@pytest.mark.parametrize("row", vectors.refused(), ids=lambda row: row["name"])
def test_the_broker_refuses_as_the_vectors_say(row: dict[str, Any]) -> None:
    server = prepared()
    client = STATES[row["state"]](server)
    client.feed(bytes.fromhex(row["frame"]))
    server.settle()
    ((kind, correlation, body),) = client.take()
    assert (kind, correlation) == (frames.ERROR, row["correlation"])
    assert (msgpack.unpackb(body)[0], client.is_closed) == (row["code"], row["closes"]), body


def test_most_codes_of_errors_have_a_vector() -> None:
    found = {row["code"] for row in vectors.refused()}
    # These need a state that no single frame makes, or are of later versions.
    missing = {104, 303, 307, 310, 311, 400, 401, 402, 403, 404, 405, 500}
    assert found | missing == set(vectors.error_codes())
    assert not found & missing


FORMS = vectors.msgpack_forms()


@pytest.mark.parametrize(("name", "packed", "means"), FORMS, ids=[name for name, _, _ in FORMS])
def test_msgpack_is_read_in_every_form(name: str, packed: bytes, means: Any) -> None:
    found = unpack(packed)
    assert (found, type(found)) == (means, type(means))


@pytest.mark.parametrize("packed", vectors.msgpack_refused().values(), ids=str)
def test_msgpack_of_other_forms_is_refused(packed: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(packed)


@pytest.mark.parametrize("name", vectors.wide())
def test_the_longest_form_means_what_the_shortest_does(name: str) -> None:
    long = vectors.wide()[name]
    row = ROWS[name]
    assert (long[4], int.from_bytes(long[5:13], "little")) == (row["type"], row["correlation"])
    short = bytes.fromhex(row["frame"])
    assert unpack(long[13:]) == unpack(short[13:])
    if row["from"] == "client":
        state = {"HELLO": "greeting", "AUTH": "authentication"}.get(name, "open")
        kinds: list[int] = []
        for data in (short, long):
            server = prepared()
            client = STATES[state](server)
            kinds.append(_ask(server, client, {**row, "frame": data.hex()})[0])
            assert not client.is_closed
        assert kinds[0] == kinds[1]


def test_properties_in_their_longest_form_are_read() -> None:
    encoded, _ = vectors.all_properties()
    found = decode_properties(vectors.wide_properties())
    assert vectors.fields_of(found) == vectors.fields_of(decode_properties(encoded))


@cache
def answers() -> dict[str, tuple[int, Any]]:
    """What a broker answers to the requests of the vectors, one after the other."""
    server = prepared()
    found: dict[str, tuple[int, Any]] = {}
    client = server.open()
    for name, row in ROWS.items():
        if row["from"] == "client" and name != "CLOSE":
            speaker = client
            if row["type"] == frames.HELLO:
                speaker = server.connect()
            elif row["type"] == frames.AUTH and name != "AUTH-AGAIN":
                speaker = server.greet()
            found[name] = _ask(server, speaker, row)
            assert not client.is_closed, name
    return found


def _ask(server: Server, client: Client, row: dict[str, Any]) -> tuple[int, Any]:
    client.feed(bytes.fromhex(row["frame"]))
    # A request without a number has no answer.
    for _ in range(100 if row["correlation"] else 1):
        for kind, correlation, body in client.take():
            if correlation == row["correlation"] and correlation:
                is_map = kind in (frames.OK, frames.ERROR, frames.HELLO)
                return kind, msgpack.unpackb(body) if is_map else body
        server.advance(1)
    return 0, None


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["from"] == "client"])
def test_the_broker_understands_each_request(name: str) -> None:
    kind, body = answers().get(name, (0, None))
    if ROWS[name]["correlation"]:
        assert kind
    # Neither is the protocol broken nor the request wrong, though it may be refused.
    assert kind != frames.ERROR or (body[0] >= 200 and body[0] != 300), body


@pytest.mark.parametrize(
    "name", [name for name in ROWS if name.endswith("-REPLY") and name != "HEARTBEAT-REPLY"]
)
def test_the_broker_answers_as_the_vectors_say(name: str) -> None:
    kind, body = answers()[ROWS[name]["answers"]]
    assert kind == ROWS[name]["type"], body
    assert fits(body_of(name), body), (shape(body_of(name)), shape(body))


# The clients


INFO = GroupInfo("g", "stable", 1, None, "sticky", 1)
PUBLICATION = Publication(payload=b"hi", routing_key=b"a.b")
POLICY = PolicyInfo(
    name="limits", pattern="^r", definition={"max-length": 10}, apply_to="queues", priority=1
)
#: By the vector of the reply: the request, and what the clients make of it.
READ: dict[str, tuple[Operation[Any], Any]] = {
    "PRODUCER-REPLY": (operations.open_producer("p1"), Producer("p1", 2, 300)),
    "STAGE-COMMITTED": (
        operations.stage("p1", 301, "a", 0, [Publication(payload=b"hi", routing_key=b"a.b")]),
        False,
    ),
    "COMMITTED-REPLY": (
        group_operations.committed("h", "s"),
        [GroupOffset(0, 1, 1, "so far"), GroupOffset(1, None, 0)],
    ),
    "METADATA-REPLY": (
        operations.metadata(["s"]),
        [StreamInfo("s", "5f", [PartitionInfo(0, 2, 2), PartitionInfo(0, 0, 0)], {})],
    ),
    "OFFSETS-REPLY": (operations.offset_for_timestamp("s", 0, 1700000000123), 0),
    "HEARTBEAT-REPLY": (
        group_operations.heartbeat(Membership("g", "m", 1)),
        (
            Membership("g", "m", 1),
            [AssignedPartition("s", "5f", 0, 42)],
        ),
    ),
    "LIST_GROUPS-REPLY": (
        group_operations.groups(limit=1),
        ([GroupInfo("e", "exclusive", 1, "m", None, 0)], "e"),
    ),
    "DECLARE-QUEUE-REPLY": (
        topology_operations.declare_queue("r", arguments={"x-max-length": 1000}),
        QueueInfo("r", 0, 0),
    ),
    "DECLARE-STREAM-REPLY": (topology_operations.declare_stream("t", 2, {}), "5f"),
    "PURGE-REPLY": (topology_operations.purge("r"), 0),
    "LIST_POLICIES-REPLY": (topology_operations.policies(), [POLICY]),
    "PERMISSIONS-LIST-LIMITS-REPLY": (
        permission_operations.manage_permissions("list-limits", {}),
        [{"name": "ann", "limits": {"max-queues": 3}}],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_the_clients_ask_and_read_as_the_vectors_say(name: str) -> None:
    operation, expected = READ[name]
    row = ROWS[name]
    asked = ROWS[row["answers"]]
    assert operation.kind == asked["type"]
    if "body" in asked and name != "HEARTBEAT-REPLY":
        assert msgpack.unpackb(operation.body) == body_of(asked["name"])
    data = bytes.fromhex(row["frame"])[13:]
    assert operation.result(Frame(row["type"], row["correlation"], data)) == expected


def test_the_clients_read_the_description_of_a_group() -> None:
    operation = group_operations.describe_group("g", streams=["s"])
    assert msgpack.unpackb(operation.body) == body_of("DESCRIBE_GROUP")
    data = bytes.fromhex(ROWS["DESCRIBE_GROUP-REPLY"]["frame"])[13:]
    found = operation.result(Frame(frames.OK, 52, data))
    assert (found.group, found.members[0].owned) == (INFO, {"s": [0, 1]})
    assert found.offsets["s"] == [GroupOffset(0, 1, 1, "so far"), GroupOffset(1, None, 0)]


def test_the_clients_read_users_and_keys() -> None:
    data = bytes.fromhex(ROWS["USERS-LIST-REPLY"]["frame"])[13:]
    (ann,) = user_operations.users().result(Frame(frames.OK, 94, data))
    assert (ann.name, ann.configured) == ("ann", False)
    data = bytes.fromhex(ROWS["USERS-ADD-KEY-REPLY"]["frame"])[13:]
    key = user_operations.add_api_key("ann", ["read:/:q"]).result(Frame(frames.OK, 95, data))
    assert (key.user, key.key[:8]) == ("ann", "trivium_")
