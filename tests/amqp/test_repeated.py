"""The fast road: what is recognised unread has the effect of what is read frame by frame."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pamqp import frame
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx

from tests.support.amqp import Client, Server, publish_frames
from tests.support.server import ShortTurns
from trivium.routing.exchanges import Binding
from trivium.runtime.framed import CLOCK_FRAMES, FRAME_DELIVERIES
from trivium_amqp.repeated import RepeatedPublish

# What is recognised


def repeated(client: Client) -> RepeatedPublish:
    found = client.connection.repeats.publish
    assert found is not None
    return found


def recognised(client: Client) -> tuple[bool, bool]:
    """Whether publishes and acknowledgements are recognised at the moment."""
    repeats = client.connection.repeats
    return repeats.publish is not None, repeats.ack_channel is not None


@pytest.fixture
def publisher(client: Client) -> Client:
    """A client that has published the same twice, which is when publishes are recognised."""
    client.declare("q")
    client.feed(publish_frames("q", b"12345") * 2)
    return client


@pytest.mark.parametrize("size", [1, 4, 5, 6, 100, 131_064])
def test_a_publish_that_begins_alike_is_recognised(publisher: Client, size: int) -> None:
    data = publish_frames("q", bytes(size))
    known = repeated(publisher)
    assert known.body_size(data, 0) == size
    assert known.body_size(b"before" + data, 6) == size
    assert data[known.body_at : known.body_at + size] == bytes(size)
    # The body need not be there yet, but its size.
    assert known.body_size(data[: known.body_at], 0) == size
    assert known.body_size(data[: known.body_at - 1], 0) == 0


def other_sizes(header: int, body: int) -> bytes:
    """A publish whose header announces another size than its body frame has."""
    data = bytearray(publish_frames("q", bytes(body)))
    at = data.index(b"\x00\x3c\x00\x00") + 4
    data[at : at + 8] = struct.pack(">Q", header)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        publish_frames("r", b"12345"),
        publish_frames("q", b"12345", mandatory=True),
        publish_frames("q", b"12345", exchange="amq.fanout"),
        publish_frames("q", b"12345", channel=2),
        publish_frames("q", b"12345", priority=1),
        publish_frames("q", b""),
        publish_frames("q", b"12345", chunk=3),
        publish_frames("q", bytes(131_073), chunk=200_000),
        other_sizes(6, 5),
        other_sizes(5, 6),
        other_sizes(1 << 32, 5),
    ],
)
def test_a_publish_that_does_not_is_to_be_read(publisher: Client, data: bytes) -> None:
    assert repeated(publisher).body_size(data, 0) == 0


def test_what_is_recognised_is_valid_until_the_topology_changes(publisher: Client) -> None:
    known = repeated(publisher)
    assert known.is_valid(publisher.server.vhost)
    publisher.bind("q", "amq.fanout", "")
    assert not known.is_valid(publisher.server.vhost)


FORGETTING: list[Callable[[Client], object]] = [
    lambda client: client.connection.blocked("memory"),
    lambda client: client.send(Tx.Select()),
    lambda client: client.send(
        Basic.Consume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
    ),
    lambda client: client.send(Channel.Close(200, "", 0, 0)),
    lambda client: client.send(Basic.Reject(7)),
    lambda client: client.send(Channel.Open()),
    lambda client: client.send(Basic.Publish(exchange="", routing_key="q")),
    lambda client: client.lose(),
]


@pytest.mark.parametrize("action", FORGETTING)
def test_what_changes_the_meaning_of_frames_ends_it(
    publisher: Client, action: Callable[[Client], object]
) -> None:
    publisher.consume("q")
    publisher.send(Basic.Ack(1))
    assert recognised(publisher) == (True, True)
    action(publisher)
    assert recognised(publisher) == (False, False)


# Both roads on any input


class Pair:
    """The same world twice: with the fast road, and with each frame read in full."""

    def __init__(self, confirms: bool) -> None:
        self.fast = World(confirms)
        self.slow = World(confirms)
        self.slow.sender.connection.repeats.largest_body = 0

    def do(self, action: Callable[[World], object]) -> None:
        """Have the same happen in both; what can be seen of it is the same."""
        assert self.fast.seen(action) == self.slow.seen(action)

    def feed(self, data: bytes) -> None:
        """The client sends this."""
        self.do(lambda world: world.sender.feed(data))


class World:
    """A broker with the client that is tested and one that consumes."""

    def __init__(self, confirms: bool) -> None:
        self.server = Server()
        self.sender = self.server.open()
        self.other = self.server.open()
        self.sender.open_channel(2)
        for name in ("q", "r"):
            self.other.declare(name)
        self.other.exchange("x", "fanout")
        self.other.bind("r", "x", "")
        self.other.consume("q", no_ack=True)
        if confirms:
            self.sender.call(Confirm.Select())
        self.sender.call(Basic.Consume(queue="r", consumer_tag="c"))

    def seen(self, action: Callable[[World], object]) -> object:
        """What clients and counters show once ``action`` is done."""
        action(self)
        self.server.sync()
        metrics = self.server.adapter.metrics
        queues = [
            (name, len(queue), queue.counters.published)
            for name, queue in self.server.vhost.queues.items()
        ]
        return (
            without_made_up_names(self.sender.take_bytes()),
            without_made_up_names(self.other.take_bytes()),
            self.sender.is_closed,
            self.sender.transport.is_aborted,
            sorted((without_made_up_names(name.encode()), *counts) for name, *counts in queues),
            metrics.messages_received,
            metrics.messages_unroutable,
            metrics.protocol_errors,
        )


def without_made_up_names(data: bytes) -> bytes:
    """All made-up names are equally long."""
    return re.sub(rb"(amq\.rabbitmq\.reply-to\.)[\w-]{32}", rb"\1" + b"*" * 32, data)


def method(made: Frame, channel: int = 1) -> bytes:
    return frame.marshal(made, channel)


BODIES = [b"a", b"a", b"b", b"cc", b"\xce" * 5, b"d" * 300, b""]
PROPERTIES: list[dict[str, Any]] = [
    {},
    {},
    {"delivery_mode": 2},
    {"headers": {"CC": ["r"]}},
    {"headers": {"x-delay": 5}},
    {"reply_to": "amq.rabbitmq.reply-to"},
    {"expiration": "soon"},
]
OTHERS = [
    method(Tx.Select()),
    method(Tx.Commit()),
    method(Confirm.Select()),
    method(Channel.Close(200, "", 0, 0)),
    method(Channel.CloseOk()),
    method(Channel.Open()),
    method(Queue.Delete(queue="q")),
    method(Queue.Declare(queue="q")),
    method(Exchange.Delete(exchange="x")),
    method(Queue.Unbind(queue="r", exchange="x")),
    method(Queue.Bind(queue="r", exchange="x"), 2),
    method(Basic.Nack(1, True, True)),
    method(Basic.Consume(queue="r", consumer_tag="d")),
    method(Basic.Consume(queue="amq.rabbitmq.reply-to", consumer_tag="e", no_ack=True)),
    method(Basic.Cancel("e")),
    method(Basic.Publish(exchange="", routing_key="q")),
    struct.pack(">BHI", 8, 0, 0) + b"\xce",
]


@st.composite
def routes(draw: st.DrawFn) -> dict[str, Any]:
    """What publishes may have in common."""
    return {
        "key": draw(st.sampled_from(["r", "r", "q", "missing"])),
        "exchange": draw(st.sampled_from(["", "", "x"])),
        "channel": draw(st.sampled_from([1, 1, 1, 2])),
        "mandatory": draw(st.sampled_from([False, False, True])),
        "chunk": draw(st.sampled_from([131_064, 131_064, 131_064, 1])),
        **draw(st.sampled_from(PROPERTIES)),
    }


def runs(route: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Publishes that are alike but for their bodies."""
    return st.lists(st.sampled_from(BODIES), min_size=3, max_size=6).map(
        lambda bodies: b"".join(publish_frames(payload=body, **route) for body in bodies)
    )


acknowledgements = st.lists(
    st.builds(Basic.Ack, st.integers(0, 6), st.sampled_from([False, False, False, True])),
    min_size=1,
    max_size=4,
).map(lambda acks: b"".join(method(ack) for ack in acks))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """One byte is another, at times one that ends a frame."""
    data = bytearray(whole)
    ends = [at for at, byte in enumerate(data) if byte == 0xCE]
    at = draw(st.one_of(st.sampled_from(ends), st.integers(0, len(data) - 1)))
    data[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 0xCE])))
    return bytes(data)


@dataclass(frozen=True)
class Elsewhere:
    """What happens between two reads, by no doing of this client."""

    name: str

    def __call__(self, world: World) -> None:
        connection = world.sender.connection
        if self.name == "blocked":
            connection.blocked("memory")
        elif self.name == "unblocked":
            connection.unblocked()
        elif self.name == "unbound":
            world.other.call(Queue.Unbind(queue="r", exchange="x"))
        elif self.name == "deleted":
            world.other.call(Exchange.Delete(exchange="x"))
        else:
            world.other.call(Queue.Delete(queue="q"))


HAPPENINGS = [Elsewhere(name) for name in ("blocked", "unblocked", "unbound", "deleted", "gone")]


@st.composite
def scripts(draw: st.DrawFn) -> list[bytes | Elsewhere]:
    """What a client sends, mostly runs, as it is read, and what happens meanwhile."""
    usual = draw(routes())
    script: list[bytes | Elsewhere] = []
    # A pause is noticed when a publish begins, which the fast road sees later: where damage leaves
    # one half read there is none.
    is_damaged = draw(st.booleans())
    happenings = HAPPENINGS[is_damaged:]
    for kind in draw(st.lists(st.integers(0, 9), min_size=2, max_size=8)):
        if kind == 0:
            script.append(draw(st.sampled_from(happenings)))
        elif kind == 1:
            script.append(draw(st.sampled_from(OTHERS)))
        elif kind == 2:
            script.append(draw(acknowledgements))
        elif kind == 3:
            script.append(draw(routes().flatmap(runs)))
        elif kind == 4 and is_damaged:
            script.append(draw(st.binary(min_size=1, max_size=12)))
        elif kind == 5 and is_damaged:
            script.append(draw(acknowledgements.flatmap(damaged)))
        elif kind == 6 and is_damaged:
            script.append(draw(runs(usual).flatmap(damaged)))
        else:
            script.append(draw(runs(usual)))
    # Reads end anywhere.
    cut: list[bytes | Elsewhere] = []
    for part in script:
        at = draw(st.integers(0, 400))
        if isinstance(part, bytes) and 0 < at < len(part):
            cut += (part[:at], part[at:])
        elif isinstance(part, bytes) and cut and isinstance(cut[-1], bytes) and at > 200:
            cut[-1] += part
        else:
            cut.append(part)
    return cut


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
)
@given(scripts(), st.booleans())
def test_both_roads_forward_confirm_and_close_the_same(
    script: list[bytes | Elsewhere], confirms: bool
) -> None:
    pair = Pair(confirms)
    for part in script:
        if isinstance(part, Elsewhere):
            event(f"{part.name} while it is {recognised(pair.fast.sender)}")
            pair.do(part)
        else:
            pair.feed(part)
    pair.do(lambda world: world.sender.connection.unblocked())
    pair.feed(method(Channel.Flow(True), 2))
    pair.do(lambda world: world.sender.lose())


#: Where the read before it ends: at a publish, in its first frame, between frames, in its body. A
#: pause is noticed when a publish begins, which the fast road sees later than the other one.
CUTS = [
    (happening, cut)
    for happening in HAPPENINGS
    for cut in (0, 10, 30, 49)
    if happening.name != "blocked" or cut <= 10
]


@pytest.mark.parametrize(("happening", "cut"), CUTS)
@pytest.mark.parametrize("exchange", ["", "x"])
def test_both_roads_take_what_happens_between_two_reads_the_same(
    happening: Elsewhere, exchange: str, cut: int
) -> None:
    pair = Pair(True)
    run = publish_frames("q", b"abc", exchange) * 3
    pair.feed(run)
    assert recognised(pair.fast.sender) == (True, False)
    pair.feed(run[:cut])
    pair.do(happening)
    pair.feed(run[cut:])
    pair.do(lambda world: world.sender.connection.unblocked())


def test_both_roads_take_any_damage_of_a_publish_the_same() -> None:
    one = publish_frames("q", b"abc", delivery_mode=2)
    for at in range(len(one)):
        pair = Pair(True)
        pair.feed(one * 2)
        assert recognised(pair.fast.sender) == (True, False)
        pair.feed(one[:at] + bytes((one[at] ^ 1,)) + one[at + 1 :] + one)


def test_what_came_before_a_damaged_frame_is_published_on_both_roads() -> None:
    one = publish_frames("q", b"abc", delivery_mode=2)
    pair = Pair(True)
    pair.feed(one * 2)
    assert recognised(pair.fast.sender) == (True, False)
    pair.feed(one * 3 + one[:-1] + b"\x00")
    assert pair.fast.server.vhost.queues["q"].counters.published == 5


def acknowledging(count: int) -> Pair:
    """Both recognise acknowledgements, and ``count`` deliveries of theirs are left, from tag 2 on.

    What is rejected is dead-lettered to the queue that the other client consumes.
    """

    def begin(world: World) -> None:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        world.other.declare("d", arguments=arguments)
        world.other.feed(b"".join(publish_frames("d", b"%d" % n) for n in range(1 + count)))
        world.sender.call(Basic.Consume(queue="d", consumer_tag="d"))
        world.sender.feed(method(Basic.Ack(1)))

    pair = Pair(False)
    pair.do(begin)
    assert recognised(pair.fast.sender) == (False, True)
    assert recognised(pair.slow.sender) == (False, False)
    return pair


def test_both_roads_take_any_damage_of_an_acknowledgement_the_same() -> None:
    one, following = method(Basic.Ack(2)), method(Basic.Ack(3))
    for at in range(len(one)):
        for bit in range(8):
            pair = acknowledging(3)
            pair.feed(one[:at] + bytes((one[at] ^ 1 << bit,)) + one[at + 1 :] + following)
            pair.do(lambda world: world.sender.lose())


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        lambda requeue: Basic.Nack(3, False, requeue),
        lambda requeue: Basic.Nack(3, True, requeue),
        lambda requeue: Basic.Reject(3, requeue),
    ],
    ids=["nack", "nack multiple", "reject"],
)
def test_both_roads_take_what_is_as_long_as_an_acknowledgement_the_same(
    other: Callable[[bool], Frame], requeue: bool
) -> None:
    pair = acknowledging(4)
    frames = [method(Basic.Ack(2)), method(other(requeue)), method(Basic.Ack(4))]
    assert len({len(one) for one in frames}) == 1
    pair.feed(b"".join(frames))
    pair.do(lambda world: world.sender.lose())


def test_both_roads_take_acknowledgements_the_same_wherever_they_are_cut() -> None:
    run = b"".join(method(Basic.Ack(tag, multiple)) for tag, multiple in ((2, False), (4, True)))
    for cut in range(1, len(run)):
        pair = acknowledging(5)
        pair.feed(run[:cut])
        pair.feed(run[cut:] + method(Basic.Ack(5)))
        pair.do(lambda world: world.sender.lose())


# A turn


@pytest.mark.parametrize("what", ["publish", "ack"])
def test_a_run_of_what_is_recognised_ends_with_the_turn(publisher: Client, what: str) -> None:
    count = 1000
    queue = publisher.server.vhost.queues["q"]
    data = publish_frames("q", b"12345") * count
    if what == "ack":
        publisher.feed(data)
        publisher.send(Basic.Consume(queue="q"))
        publisher.send(Basic.Ack(delivery_tag=1), Basic.Ack(delivery_tag=2))
        assert recognised(publisher)[1]
        data = b"".join(frame.marshal(Basic.Ack(delivery_tag=3 + n), 1) for n in range(count))
    driver = ShortTurns()
    publisher.server.broker.driver = publisher.server.driver = driver
    begin = queue.counters.published + queue.counters.settled
    publisher.connection.feed(data)
    turns = 1
    while driver.next:
        assert driver.next == [publisher.connection]
        driver.next.clear()
        assert queue.counters.published + queue.counters.settled - begin <= turns * CLOCK_FRAMES
        publisher.connection.next_turn()
        turns += 1
    assert queue.counters.published + queue.counters.settled - begin == count
    assert turns >= count // CLOCK_FRAMES


@pytest.mark.parametrize("is_repeated", [False, True])
def test_messages_with_many_destinations_take_turns(publisher: Client, is_repeated: bool) -> None:
    vhost = publisher.server.vhost
    queues = [vhost.declare_queue(f"q{number}") for number in range(FRAME_DELIVERIES * 16)]
    for queue in queues:
        vhost.bind(vhost.exchange("amq.fanout"), Binding(queue, b""))
    count = 100
    bodies = [b"12345" if is_repeated else b"x" * (1 + number % 2) for number in range(count)]
    if is_repeated:
        publisher.feed(publish_frames("", b"12345", "amq.fanout") * 2)
        count += 2
    driver = ShortTurns()
    publisher.server.broker.driver = publisher.server.driver = driver
    publisher.connection.feed(b"".join(publish_frames("", body, "amq.fanout") for body in bodies))
    turns = 1
    while driver.next:
        driver.next.clear()
        assert len(queues[-1]) <= turns * 2 * CLOCK_FRAMES // 16 + 2
        publisher.connection.next_turn()
        turns += 1
    assert [len(queue) for queue in queues] == [count] * len(queues)
