"""Virtual hosts: declarations, bindings, routes, and their restart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tests.support.core import RecordingConsumer, drain, message, open_broker, open_vhost
from tests.support.steps import steps
from tests.support.storages import HeldStorage
from trivium.errors import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from trivium.messages.message import HeaderValue, Message
from trivium.routing.exchanges import REJECTED, Binding, Destination, Exchange
from trivium.storage.memory import MemoryStorage
from trivium.vhost.queue_logs import queue_log_name
from trivium.vhost.virtual_host import VirtualHost


@pytest.fixture
def vhost() -> VirtualHost:
    return open_vhost()


def names(vhost: VirtualHost, exchange: str, key: bytes) -> list[str]:
    return [d.name for d in vhost.route(vhost.exchange(exchange), key).destinations]


def bind(vhost: VirtualHost, exchange: str, queue: str, key: bytes) -> Binding:
    binding = Binding(vhost.queues[queue], key)
    vhost.bind(vhost.exchange(exchange), binding)
    return binding


def test_predeclared_exchanges_exist(vhost: VirtualHost) -> None:
    kinds = {name: exchange.kind for name, exchange in vhost.exchanges.items()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.trivium.event": "topic",
        "amq.rabbitmq.trace": "topic",
    }


def test_default_exchange_routes_to_the_queue_of_that_name(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    assert names(vhost, "", b"q") == ["q"]
    assert names(vhost, "", b"other") == []
    assert names(vhost, "", b"\xff") == []


def test_routes_follow_every_change_of_topology(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    assert names(vhost, "amq.topic", b"a.b") == []
    binding = bind(vhost, "amq.topic", "q", b"a.*")
    assert names(vhost, "amq.topic", b"a.b") == ["q"]
    vhost.unbind(vhost.exchange("amq.topic"), binding)
    assert names(vhost, "amq.topic", b"a.b") == []
    bind(vhost, "amq.topic", "q", b"#")
    vhost.delete_queue(vhost.queues["q"])
    assert names(vhost, "amq.topic", b"a.b") == []
    assert vhost.exchange("amq.topic").bindings() == []


def test_a_route_is_cached_until_the_topology_changes(vhost: VirtualHost) -> None:
    first = vhost.route(vhost.exchange("amq.topic"), b"a")
    assert vhost.route(vhost.exchange("amq.topic"), b"a") is first
    vhost.declare_queue("q")
    assert vhost.route(vhost.exchange("amq.topic"), b"a") is not first


def test_a_queue_bound_twice_gets_one_copy(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    bind(vhost, "amq.topic", "q", b"a.*")
    bind(vhost, "amq.topic", "q", b"#")
    assert names(vhost, "amq.topic", b"a.b") == ["q"]


def test_exchange_to_exchange_bindings_and_cycles(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    vhost.declare_exchange("one", "fanout")
    vhost.declare_exchange("two", "fanout")
    for source, target in (("one", "two"), ("two", "one")):
        vhost.bind(vhost.exchange(source), Binding(vhost.destination(target, True), b""))
    bind(vhost, "one", "q", b"")
    bind(vhost, "two", "q", b"")
    assert names(vhost, "one", b"k") == ["q"]


def test_alternate_exchange_takes_what_is_unroutable(vhost: VirtualHost) -> None:
    vhost.declare_queue("lost")
    vhost.declare_queue("q")
    vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "amq.fanout"})
    bind(vhost, "amq.fanout", "lost", b"")
    bind(vhost, "x", "q", b"k")
    assert names(vhost, "x", b"k") == ["q"]
    assert names(vhost, "x", b"other") == ["lost"]


def test_headers_exchange_routes_by_each_message(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    vhost.bind(vhost.exchange("amq.headers"), Binding(vhost.queues["q"], b"", {"a": 1}))
    route = vhost.route(vhost.exchange("amq.headers"), b"")
    assert route.depends_on_message
    for value, expected in ((1, ["q"]), (2, [])):
        sent = message()
        sent.annotations = {"a": value}
        assert [d.name for d in route.resolve(sent).destinations] == expected


def test_only_keys_that_reach_a_headers_exchange_depend_on_the_message(vhost: VirtualHost) -> None:
    vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "last"})
    vhost.declare_exchange("last", "topic")
    headers = vhost.exchange("amq.headers").destination()
    vhost.declare_queue("q")
    vhost.bind(vhost.exchange("x"), Binding(headers, b"through"))
    bind(vhost, "x", "q", b"beside")
    vhost.bind(vhost.exchange("last"), Binding(headers, b"*"))
    exchange = vhost.exchange("x")
    keys = [b"through", b"beside", b"alternate", b"not.there"]
    assert [vhost.route(exchange, key).depends_on_message for key in keys] == [
        True,
        False,
        True,
        False,
    ]
    assert names(vhost, "x", b"beside") == ["q"]


@pytest.mark.parametrize("is_retained", [False, True])
@pytest.mark.parametrize("names", [["full", "q"], ["q", "full"], ["q"], ["full"]])
def test_a_publish_is_refused_by_one_destination_or_waits_for_the_disk(
    names: list[str], is_retained: bool
) -> None:
    """A retained message is kept, and that waits too, but does not take a refusal back."""
    storage = HeldStorage()
    vhost = open_vhost(storage)
    full: dict[str, HeaderValue] = {"x-max-length": 0, "x-overflow": "reject-publish"}
    vhost.declare_queue("q", durable=True)
    vhost.declare_queue("full", durable=True, arguments=full)
    for name in names:
        bind(vhost, "amq.topic", name, b"k")
    sent = message(b"m", exchange="amq.topic")
    sent.retain = is_retained
    result = vhost.publish(sent, vhost.route(vhost.exchange("amq.topic"), b"k"))
    assert result == (REJECTED if "full" in names else storage.write_batch)
    assert drain(vhost.queues["q"]) == [b"m"] * names.count("q")
    assert len(vhost.retained) == is_retained


def test_missing_things_are_not_found(vhost: VirtualHost) -> None:
    with pytest.raises(NotFound, match="no exchange 'x' in vhost '/'"):
        vhost.exchange("x")
    with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
        vhost.queue("q")
    with pytest.raises(NotFound, match="no stream 's' in vhost '/'"):
        vhost.stream("s")


def test_declaring_again_must_agree(vhost: VirtualHost) -> None:
    vhost.declare_queue("q", durable=True)
    assert vhost.declare_queue("q", durable=True) is vhost.queues["q"]
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable' for queue 'q'"):
        vhost.declare_queue("q")
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-max-length'"):
        vhost.declare_queue("q", durable=True, arguments={"x-max-length": 1})
    vhost.declare_exchange("x", "topic")
    with pytest.raises(PreconditionFailed, match="received 'direct' but current is 'topic'"):
        vhost.declare_exchange("x", "direct")


def test_reserved_names_are_refused(vhost: VirtualHost) -> None:
    with pytest.raises(AccessRefused):
        vhost.declare_queue("amq.mine")
    with pytest.raises(AccessRefused):
        vhost.declare_exchange("amq.mine", "direct")
    with pytest.raises(AccessRefused):
        vhost.delete_exchange("amq.topic")
    vhost.declare_queue("q")
    with pytest.raises(AccessRefused):
        bind(vhost, "", "q", b"k")
    assert vhost.declare_queue("").name.startswith("amq.gen-")


def test_exclusive_queues_belong_to_their_connection(vhost: VirtualHost) -> None:
    mine, other = object(), object()
    queue = vhost.declare_queue("q", owner=mine)
    assert vhost.queue("q", mine) is queue
    with pytest.raises(ResourceLocked):
        vhost.queue("q", other)
    with pytest.raises(ResourceLocked):
        vhost.declare_queue("q", connection=other)
    vhost.delete_queues_of(mine)
    assert vhost.queues == {}


def test_conditional_deletion(vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q")
    queue.put(message(), b"")
    with pytest.raises(PreconditionFailed, match="not empty"):
        vhost.delete_queue(queue, if_empty=True)
    consumer = RecordingConsumer()
    queue.add_consumer(consumer)
    with pytest.raises(PreconditionFailed, match="in use"):
        vhost.delete_queue(queue, if_unused=True)
    queue.remove_consumer(consumer)
    vhost.declare_exchange("x", "fanout")
    bind(vhost, "x", "q", b"")
    with pytest.raises(PreconditionFailed, match="in use"):
        vhost.delete_exchange("x", if_unused=True)
    vhost.delete_exchange("x")
    vhost.delete_exchange("x")


def test_auto_delete_exchange_goes_with_its_last_binding(vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    vhost.declare_exchange("x", "fanout", auto_delete=True)
    binding = bind(vhost, "x", "q", b"")
    vhost.unbind(vhost.exchange("x"), binding)
    assert "x" not in vhost.exchanges


def test_arguments_have_their_types_again_after_a_restart() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    queue = vhost.declare_queue("q", durable=True)
    arguments: dict[str, HeaderValue] = {
        "decimal": Decimal("1.00"),
        "time": datetime.fromtimestamp(1, UTC),
        "nested": [Decimal(-1), {"b": b"\xff"}],
    }
    vhost.bind(vhost.exchange("amq.headers"), Binding(queue, b"", arguments))
    again = open_vhost(storage)
    headers = again.exchange("amq.headers")
    assert [binding.arguments for binding in headers.bindings()] == [arguments]
    assert again.unbind(headers, Binding(again.queues["q"], b"", arguments))
    assert open_vhost(storage).exchange("amq.headers").bindings() == []


def test_durable_topology_is_restored_and_the_rest_is_not() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    vhost.declare_exchange("kept", "headers", durable=True, arguments={"alternate-exchange": "x"})
    vhost.declare_exchange("gone", "topic")
    vhost.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
    vhost.declare_queue("gone")
    vhost.declare_queue("exclusive", durable=True, owner=object())
    kept = vhost.exchange("kept")
    vhost.bind(kept, Binding(vhost.queue("kept"), b"k", {"x-match": "any", "a": 1}))
    vhost.bind(kept, Binding(vhost.queue("gone"), b"k"))
    vhost.bind(vhost.exchange("amq.topic"), Binding(vhost.destination("kept", True), b"a.#"))
    vhost.bind(vhost.exchange("amq.topic"), Binding(vhost.queue("kept"), b"a/+", is_filter=True))

    again = open_broker(storage).vhosts["/"]
    assert set(again.exchanges) == set(vhost.exchanges) - {"gone"}
    assert set(again.queues) == {"kept"}
    exchange: Exchange = again.exchange("kept")
    assert (exchange.kind, exchange.alternate, exchange.durable) == ("headers", "x", True)
    (binding,) = exchange.bindings()
    assert (binding.pattern, binding.arguments) == (b"k", {"x-match": "any", "a": 1})
    assert again.queue("kept").arguments == {"x-queue-type": "quorum"}
    patterns = sorted((b.pattern, b.is_filter) for b in again.exchange("amq.topic").bindings())
    assert patterns == [(b"a.#", False), (b"a/+", True)]


def test_a_deleted_binding_does_not_come_back() -> None:
    storage = MemoryStorage()
    vhost = open_vhost(storage)
    vhost.declare_queue("q", durable=True)
    binding = bind(vhost, "amq.topic", "q", b"k")
    vhost.unbind(vhost.exchange("amq.topic"), binding)
    assert open_broker(storage).vhosts["/"].exchange("amq.topic").bindings() == []


def test_virtual_hosts_are_kept_and_separate() -> None:
    storage = MemoryStorage()
    broker = open_broker(storage)
    broker.virtual_hosts.declare("other").declare_queue("q", durable=True)
    again = open_broker(storage)
    assert set(again.vhosts) == {"/", "other"}
    assert set(again.vhosts["other"].queues) == {"q"}
    assert again.vhosts["/"].queues == {}
    with pytest.raises(NotFound, match="vhost missing not found"):
        again.vhost("missing")


def test_no_two_queues_share_a_log() -> None:
    names = [
        queue_log_name(vhost, queue, priority)
        for vhost, queue, priority in (
            ("a", "b/0/c", 0),
            ("a/0/b", "c", 0),
            ("a", "q#1", 0),
            ("a", "q", 1),
            ("a", "1/q", 0),
        )
    ]
    assert len(set(names)) == len(names)


def test_a_private_queue_is_for_its_adapter_alone() -> None:
    vhost = open_vhost()
    private = vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter="mqtt")
    assert vhost.queue("amq.mqtt-session.c", adapter="mqtt") is private
    again = vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter="mqtt")
    assert again is private
    for adapter in ("", "amqp"):
        with pytest.raises(AccessRefused, match=r"queue 'amq\.mqtt-session\.c' .* is private"):
            vhost.queue("amq.mqtt-session.c", adapter=adapter)
        with pytest.raises(AccessRefused):
            vhost.declare_queue("amq.mqtt-session.c", durable=True, adapter=adapter)
    with pytest.raises(AccessRefused):
        vhost.destination("amq.mqtt-session.c", is_exchange=False)


def test_the_default_exchange_does_not_lead_into_a_session() -> None:
    vhost = open_vhost()
    vhost.declare_queue("amq.mqtt-session.c", adapter="mqtt")
    replies = vhost.declare_queue("amq.replies.1", adapter="amqp", owner=object())
    assert vhost.route(vhost.exchange(""), b"amq.mqtt-session.c").destinations == []
    assert vhost.route(vhost.exchange(""), b"amq.replies.1").destinations == [replies]


class Combining(Destination):
    """Keeps the patterns of the bindings that it is to stand for."""

    def __init__(self) -> None:
        self.name = "combining"
        self.combined: list[bytes] = []

    def accept(self, message: Message) -> int:
        return 0

    def combine(self, bindings: list[Binding]) -> Destination:
        made = Combining()
        made.combined = [binding.pattern for binding in bindings]
        return made


def test_several_keys_lead_to_a_destination_once_by_all_bindings_that_match(
    vhost: VirtualHost,
) -> None:
    """A session whose subscriptions match two of the keys gets one message."""
    exchange = vhost.exchange("amq.topic")
    destination = Combining()
    for pattern in (b"a", b"b", b"#", b"c"):
        vhost.bind(exchange, Binding(destination, pattern))
    (found,) = vhost.route_all(exchange, [b"a", b"b", b"a"], message(b"x")).destinations
    assert isinstance(found, Combining)
    assert sorted(found.combined) == [b"#", b"a", b"b"]


def _grown(action: Callable[[int], Callable[[], None]]) -> float:
    """How many times the steps of ``action`` for 50 things those for 200 are."""
    return steps(action(200)) / steps(action(50))


@pytest.mark.pure
@pytest.mark.parametrize("source", ["amq.topic", "amq.direct", "amq.fanout", "amq.headers"])
def test_deleting_the_queues_of_one_exchange_one_by_one_is_linear(source: str) -> None:
    def delete(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        for number in range(count):
            bind(vhost, source, vhost.declare_queue(f"q{number}").name, b"k")

        def act() -> None:
            for number in range(count):
                vhost.delete_queue(vhost.queue(f"q{number}"))
            assert vhost.exchange(source).bindings() == []

        return act

    assert _grown(delete) < 6


@pytest.mark.pure
def test_deleting_queues_among_many_exchanges_is_linear() -> None:
    def delete(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        for number in range(count):
            vhost.declare_exchange(f"x{number}", "direct")
            bind(vhost, f"x{number}", vhost.declare_queue(f"q{number}").name, b"k")

        def act() -> None:
            for number in range(count):
                vhost.delete_queue(vhost.queue(f"q{number}"))

        return act

    assert _grown(delete) < 6


@pytest.mark.pure
@pytest.mark.parametrize("kind", ["topic", "direct", "fanout", "headers"])
def test_unbinding_from_an_auto_delete_exchange_one_by_one_is_linear(kind: str) -> None:
    def unbind(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        vhost.declare_exchange("x", kind, auto_delete=True)
        bindings = [
            bind(vhost, "x", vhost.declare_queue(f"q{number}").name, b"k")
            for number in range(count)
        ]

        def act() -> None:
            for binding in bindings:
                assert vhost.unbind(vhost.exchange("x"), binding)
            assert "x" not in vhost.exchanges

        return act

    assert _grown(unbind) < 6


@pytest.mark.pure
def test_deleting_exchanges_that_one_exchange_leads_to_is_linear() -> None:
    def delete(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        source = vhost.exchange("amq.fanout")
        for number in range(count):
            target = vhost.declare_exchange(f"x{number}", "fanout")
            vhost.bind(source, Binding(target.destination(), b""))

        def act() -> None:
            for number in range(count):
                vhost.delete_exchange(f"x{number}")
            assert source.bindings() == []

        return act

    assert _grown(delete) < 6


@pytest.mark.pure
def test_exchanges_that_a_key_does_not_lead_to_cost_its_route_nothing() -> None:
    def find_routes(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        source = vhost.declare_exchange("x", "topic")
        for number in range(count):
            target = vhost.declare_exchange(f"x{number}", "topic")
            vhost.bind(source, Binding(target.destination(), b"k%d" % number))
        queue = vhost.declare_queue("q")
        vhost.bind(source, Binding(queue, b"k"))

        def act() -> None:
            for number in range(20):
                vhost.bind(vhost.exchange("amq.fanout"), Binding(queue, b"%d" % number))
                assert names(vhost, "x", b"k") == ["q"]
                assert names(vhost, "x", b"other.%d" % number) == []

        return act

    assert _grown(find_routes) < 1.1


@pytest.mark.pure
def test_connections_with_queues_of_their_own_go_in_linear_steps() -> None:
    def go(count: int) -> Callable[[], None]:
        vhost = open_vhost()
        owners = [object() for _ in range(count)]
        for number, owner in enumerate(owners):
            vhost.declare_queue(f"q{number}", owner=owner)

        def act() -> None:
            for owner in owners:
                vhost.delete_queues_of(owner)
            assert not vhost.queues

        return act

    assert _grown(go) < 6


def test_a_name_that_is_used_again_has_none_of_the_old_bindings(vhost: VirtualHost) -> None:
    for _ in range(3):
        vhost.declare_queue("q")
        bind(vhost, "amq.direct", "q", b"k")
        vhost.declare_exchange("x", "fanout")
        target = vhost.exchange("x").destination()
        vhost.bind(vhost.exchange("amq.direct"), Binding(target, b"k"))
        assert names(vhost, "amq.direct", b"k") == ["q"]
        vhost.delete_queue(vhost.queue("q"))
        vhost.delete_exchange("x")
        assert vhost.exchange("amq.direct").bindings() == []
        assert names(vhost, "amq.direct", b"k") == []
