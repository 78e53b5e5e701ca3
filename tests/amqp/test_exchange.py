"""Class exchange (40), and routing by exchange type."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue, Tx

from tests.support.amqp import Client, Server, assert_channel_closed, names, publish_frames
from tests.support.steps import calls
from trivium.messages.message import Address, Message
from trivium.routing.exchanges import Binding, TopicExchange
from trivium_amqp.content import MAX_COPIES

SECOND = datetime.fromtimestamp(1, UTC)


def reopen(client: Client) -> None:
    client.send(Channel.CloseOk())
    client.open_channel(1)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_exchange_declare_and_delete(client: Client, kind: str) -> None:
    client.exchange("e", kind)
    assert client.server.vhost.exchanges["e"].kind == kind
    assert client.ask(Exchange.Declare(exchange="e", passive=True)).name == "Exchange.DeclareOk"
    assert client.ask(Exchange.Delete(exchange="e")).name == "Exchange.DeleteOk"
    assert "e" not in client.server.vhost.exchanges


@pytest.mark.parametrize(
    "name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]
)
def test_predeclared_exchanges(client: Client, name: str) -> None:
    assert client.ask(Exchange.Declare(exchange=name, passive=True)).name == "Exchange.DeclareOk"


def test_nowait_is_not_answered(client: Client) -> None:
    assert client.call(Exchange.Declare(exchange="e", nowait=True)) == []
    assert client.call(Exchange.Declare(exchange="f", nowait=True)) == []
    assert client.call(Exchange.Bind(destination="e", source="f", nowait=True)) == []
    assert client.call(Exchange.Unbind(destination="e", source="f", nowait=True)) == []
    assert client.call(Exchange.Delete(exchange="e", nowait=True)) == []
    assert "e" not in client.server.vhost.exchanges


def test_exchange_declare_passive_of_missing_is_404(client: Client) -> None:
    assert_channel_closed(
        client.ask(Exchange.Declare(exchange="x", passive=True)),
        404,
        "NOT_FOUND - no exchange 'x' in vhost '/'",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"exchange_type": "fanout"}, "'type' for exchange 'e' in vhost '/': received 'fanout'"
         " but current is 'direct'"),
        ({"durable": True}, "'durable' for exchange 'e' in vhost '/': received 'true'"
         " but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for exchange 'e' in vhost '/': received 'true'"
         " but current is 'false'"),
        ({"internal": True}, "'internal' for exchange 'e' in vhost '/': received 'true'"
         " but current is 'false'"),
    ],
)  # fmt: skip
def test_exchange_redeclare_with_other_properties_is_406(
    client: Client, change: dict[str, object], text: str
) -> None:
    client.exchange("e")
    again = Exchange.Declare(**{"exchange": "e", "exchange_type": "direct", **change})  # type: ignore[arg-type]
    assert_channel_closed(client.ask(again), 406, f"PRECONDITION_FAILED - inequivalent arg {text}")


def test_exchange_declare_of_unknown_type_is_406(client: Client) -> None:
    assert_channel_closed(
        client.ask(Exchange.Declare(exchange="e", exchange_type="magic")),
        406,
        "PRECONDITION_FAILED - unknown exchange type 'magic'",
    )


def test_exchange_declare_of_reserved_name_is_403(client: Client) -> None:
    assert_channel_closed(
        client.ask(Exchange.Declare(exchange="amq.new")),
        403,
        "ACCESS_REFUSED - exchange name 'amq.new' contains reserved prefix 'amq.*'",
    )


@pytest.mark.parametrize(
    "method",
    [
        Exchange.Declare(exchange="", exchange_type="direct"),
        Exchange.Delete(exchange=""),
        Queue.Bind(queue="q", exchange="", routing_key="k"),
        Queue.Unbind(queue="q", exchange="", routing_key="k"),
        Exchange.Bind(destination="amq.topic", source=""),
        Exchange.Bind(destination="", source="amq.topic"),
    ],
)
def test_default_exchange_is_403(client: Client, method: Queue.Bind) -> None:
    client.declare("q")
    assert_channel_closed(
        client.ask(method), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"
    )


def test_only_known_arguments_of_an_exchange_are_compared(client: Client) -> None:
    client.exchange("e", arguments={"team": "a", "alternate-exchange": "x"})
    client.exchange("e", arguments={"team": "b", "x-more": 1, "alternate-exchange": "x"})
    closed = client.ask(Exchange.Declare(exchange="e", arguments={"alternate-exchange": "y"}))
    assert_channel_closed(
        closed,
        406,
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'e' in vhost"
        " '/': received 'y' but current is 'x'",
    )


def test_alternate_exchange_is_a_name(client: Client) -> None:
    closed = client.ask(Exchange.Declare(exchange="e", arguments={"alternate-exchange": 1 << 20}))
    assert_channel_closed(
        closed,
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange'"
        " in exchange 'e' in vhost '/'",
    )


def test_exchange_delete_of_missing_is_no_error(client: Client) -> None:
    assert client.ask(Exchange.Delete(exchange="x")).name == "Exchange.DeleteOk"


def test_exchange_delete_of_predeclared_is_403(client: Client) -> None:
    for name in ("amq.topic", "amq.of-nobody"):
        assert_channel_closed(
            client.ask(Exchange.Delete(exchange=name)),
            403,
            f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed",
        )
        reopen(client)


def test_exchange_delete_if_unused_in_use_is_406(client: Client) -> None:
    client.exchange("e")
    client.declare("q")
    client.bind("q", "e", "k")
    assert_channel_closed(
        client.ask(Exchange.Delete(exchange="e", if_unused=True)),
        406,
        "PRECONDITION_FAILED - exchange 'e' in vhost '/' in use",
    )


def test_publish_to_missing_exchange_is_404_with_the_method_id(client: Client) -> None:
    client.publish("k", exchange="x")
    (closed,) = client.take()
    assert_channel_closed(closed, 404, "NOT_FOUND - no exchange 'x' in vhost '/'")
    assert (closed.class_id, closed.method_id) == (60, 40)


def test_publish_to_an_exchange_deleted_meanwhile_is_404(client: Client) -> None:
    client.exchange("e", "fanout")
    for _ in range(4):
        client.publish("k", b"same", exchange="e")
    assert client.take() == []
    client.ask(Exchange.Delete(exchange="e"))
    client.publish("k", b"same", exchange="e")
    assert client.take()[0].reply_code == 404


def test_publish_to_internal_exchange_is_403(client: Client) -> None:
    client.exchange("inner", "fanout", internal=True)
    client.publish("k", exchange="inner")
    assert_channel_closed(
        client.take()[0],
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'",
    )


def test_commit_to_an_exchange_that_is_internal_by_then_is_403(client: Client) -> None:
    client.exchange("e", "fanout")
    client.ask(Tx.Select())
    client.publish("k", exchange="e")
    other = client.server.open()
    other.ask(Exchange.Delete(exchange="e"))
    other.exchange("e", "fanout", internal=True)
    (closed,) = client.call(Tx.Commit())
    reason = "ACCESS_REFUSED - cannot publish to internal exchange 'e' in vhost '/'"
    assert_channel_closed(closed, 403, reason)


@pytest.mark.parametrize(
    ("kind", "binding", "keys"),
    [
        ("direct", "a.b", ["a.b"]),
        ("fanout", "", ["a.b", "a.c", "", "x"]),
        ("topic", "a.*", ["a.b", "a.c"]),
        ("topic", "#", ["a.b", "a.c", "", "x"]),
        ("topic", "#.b", ["a.b"]),
    ],
)
def test_routing(client: Client, kind: str, binding: str, keys: list[str]) -> None:
    client.exchange("e", kind)
    client.declare("q")
    client.bind("q", "e", binding)
    for key in ("a.b", "a.c", "", "x"):
        client.publish(key, key.encode(), exchange="e")
    found = []
    while (body := client.get("q")) is not None:
        found.append(body.decode())
    assert found == keys


def test_routing_follows_a_change_between_equal_publishes(client: Client) -> None:
    client.exchange("e", "direct")
    client.declare("q1")
    client.declare("q2")
    client.bind("q1", "e", "k")
    for _ in range(4):
        client.publish("k", b"same", exchange="e")
    client.bind("q2", "e", "k")
    client.publish("k", b"same", exchange="e")
    assert (client.counts("q1"), client.counts("q2")) == ((5, 0), (1, 0))
    client.ask(Queue.Unbind(queue="q1", exchange="e", routing_key="k"))
    client.publish("k", b"same", exchange="e")
    assert (client.counts("q1"), client.counts("q2")) == ((5, 0), (2, 0))


@pytest.mark.parametrize(
    ("arguments", "matching"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, [1]),
        ({"x-match": "any", "a": 1, "b": "x"}, [0, 1]),
        ({"a": 1}, [0, 1]),
        ({"x-match": "any", "c": None}, [2]),
        ({"x-match": "all-with-x", "x-k": 5}, [2]),
    ],
)
def test_headers_exchange(
    client: Client, arguments: dict[str, object], matching: list[int]
) -> None:
    client.declare("q")
    client.bind("q", "amq.headers", "", arguments=arguments)
    for index, headers in enumerate(({"a": 1}, {"a": 1, "b": "x"}, {"c": "any", "x-k": 5})):
        client.publish("", str(index).encode(), exchange="amq.headers", headers=headers)
    found = []
    while (body := client.get("q")) is not None:
        found.append(int(body))
    assert found == matching


@pytest.mark.parametrize(
    ("wanted", "header", "is_routed"),
    [
        (1, True, False),
        (1, 1 << 40, False),
        (1, 1.0, True),
        (1, SECOND, True),
        (SECOND, SECOND, True),
        (Decimal(1), Decimal(1), True),
        (1, Decimal(1), False),
        ("v", bytearray(b"v"), True),
        (bytearray(b"v"), "v", True),
        ([1], [True], False),
        ([SECOND], [SECOND], True),
        ({"a": 1}, {"a": True}, False),
    ],
)
def test_a_headers_exchange_compares_types(
    client: Client, wanted: object, header: object, is_routed: bool
) -> None:
    client.declare("q")
    client.bind("q", "amq.headers", "", arguments={"a": wanted})
    client.publish("", b"x", exchange="amq.headers", headers={"a": header})
    assert (client.get("q") is not None) is is_routed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("some", 'value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        (1 << 20, "type signedint; expected longstr"),
        (True, "type bool; expected longstr"),
    ],
)
def test_bind_with_bad_x_match_is_406(client: Client, given: str | int, text: str) -> None:
    client.declare("q")
    bind = Queue.Bind(queue="q", exchange="amq.headers", arguments={"x-match": given})
    assert_channel_closed(
        client.ask(bind), 406, f"PRECONDITION_FAILED - Invalid x-match field {text}"
    )


def test_exchange_bind_and_unbind(client: Client) -> None:
    client.exchange("from", "topic")
    client.exchange("to", "fanout")
    client.declare("q")
    client.bind("q", "to", "")
    bind = Exchange.Bind(destination="to", source="from", routing_key="a.#")
    assert client.ask(bind).name == "Exchange.BindOk"
    client.publish("a.b", b"1", exchange="from")
    unbind = Exchange.Unbind(destination="to", source="from", routing_key="a.#")
    assert client.ask(unbind).name == "Exchange.UnbindOk"
    client.publish("a.b", b"2", exchange="from")
    assert [client.get("q"), client.get("q")] == [b"1", None]


def test_message_reaches_a_queue_once_over_several_ways(client: Client) -> None:
    client.exchange("to", "fanout")
    client.declare("q")
    client.bind("q", "to", "")
    client.bind("q", "amq.topic", "a.*")
    client.bind("q", "amq.topic", "a.#")
    for key in ("a.*", "#"):
        client.ask(Exchange.Bind(destination="to", source="amq.topic", routing_key=key))
    client.ask(Exchange.Bind(destination="amq.topic", source="to"))
    client.publish("a.b", exchange="amq.topic")
    assert client.counts("q") == (1, 0)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (Queue.Bind(queue="x", exchange="amq.topic"), "queue 'x'"),
        (Queue.Bind(queue="q", exchange="x"), "exchange 'x'"),
        (Queue.Bind(queue="missing", exchange="x"), "exchange 'x'"),
        (Exchange.Bind(destination="x", source="amq.topic"), "exchange 'x'"),
        (Exchange.Bind(destination="amq.topic", source="x"), "exchange 'x'"),
    ],
)
def test_bind_of_missing_is_404(client: Client, method: Queue.Bind, text: str) -> None:
    client.declare("q")
    assert_channel_closed(client.ask(method), 404, f"NOT_FOUND - no {text} in vhost '/'")


@pytest.mark.parametrize(
    "method",
    [
        Queue.Unbind(queue="q", exchange="amq.topic", routing_key="k"),
        Queue.Unbind(queue="x", exchange="amq.topic", routing_key="k"),
        Queue.Unbind(queue="q", exchange="x", routing_key="k"),
        Exchange.Unbind(destination="amq.fanout", source="amq.topic"),
        Exchange.Unbind(destination="x", source="amq.topic"),
        Exchange.Unbind(destination="amq.fanout", source="x"),
    ],
)
def test_unbind_of_what_is_missing_is_no_error(client: Client, method: Queue.Unbind) -> None:
    client.declare("q")
    assert client.ask(method).name == method.valid_responses[0]


def test_auto_delete_exchange_goes_with_its_last_binding(client: Client) -> None:
    client.exchange("e", "fanout", auto_delete=True)
    client.declare("q")
    client.bind("q", "e", "")
    client.ask(Queue.Unbind(queue="q", exchange="e", routing_key=""))
    assert "e" not in client.server.vhost.exchanges


def test_alternate_exchange_takes_the_unroutable_and_counts_as_routed(client: Client) -> None:
    client.exchange("other", "fanout")
    client.declare("q")
    client.bind("q", "other", "")
    client.exchange("e", "direct", arguments={"alternate-exchange": "other"})
    client.publish("k", b"lost", exchange="e", mandatory=True)
    assert client.take() == []
    assert client.get("q") == b"lost"


def test_bindings_of_an_exclusive_queue_go_with_it(client: Client) -> None:
    owner = client.server.open()
    name = owner.declare("", exclusive=True)
    owner.bind(name, "amq.topic", "#")
    owner.lose()
    client.publish("k", exchange="amq.topic", mandatory=True)
    assert names(client.take())[0] == "Basic.Return"


def test_sender_selected_distribution(client: Client) -> None:
    for queue in ("one", "two", "three"):
        client.declare(queue)
    client.publish("one", b"m", headers={"CC": ["two", "one"], "BCC": ["three"], "k": "v"})
    for queue in ("one", "two", "three"):
        received = client.call(Basic.Get(queue=queue, no_ack=True))
        assert received[0].routing_key == "one"
        # Nobody sees the blind copies.
        assert received[1].properties.headers == {"CC": ["two", "one"], "k": "v"}
        assert client.get(queue) is None


def test_sender_selected_distribution_by_pattern(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.topic", "b.*")
    client.publish("a", b"m", exchange="amq.topic", mandatory=True, headers={"CC": ["b.c"]})
    assert client.take() == []
    assert client.get("q") == b"m"


def test_only_text_in_a_distribution_is_a_routing_key(client: Client) -> None:
    client.declare("q")
    client.declare("other")
    client.publish("q", b"m", headers={"CC": [1, "other", None, ["q"]]})
    assert (client.get("q"), client.get("other")) == (b"m", b"m")
    assert client.get("q") is None


@pytest.mark.parametrize("headers", [{"CC": "one"}, {"BCC": 5}])
def test_bad_sender_selected_distribution_is_406(
    client: Client, headers: dict[str, object]
) -> None:
    client.publish("q", headers=headers)
    assert client.take()[0].reply_code == 406


def test_what_is_retained_is_not_unroutable(client: Client) -> None:
    client.publish("a.b", b"x", exchange="amq.topic", mandatory=True, headers={"x-retain": True})
    assert client.take() == []
    assert client.server.adapter.metrics.messages_unroutable == 0
    client.publish("a.b", b"x", exchange="amq.fanout", mandatory=True, headers={"x-retain": True})
    assert len(client.take()) == 3
    assert client.server.adapter.metrics.messages_unroutable == 1


def test_x_retain_header_sets_the_retained_message_of_its_topic(client: Client) -> None:
    retained = client.server.vhost.retained
    client.publish("a.b", b"21", exchange="amq.topic", headers={"x-retain": True})
    kept = retained.get(b"a.b")
    assert kept is not None
    assert kept.payload == b"21"
    assert kept.retain
    client.publish("a.b", b"22", exchange="amq.topic", headers={"x-retain": False})
    client.publish("a.b", b"22", exchange="amq.fanout", headers={"x-retain": True})
    kept = retained.get(b"a.b")
    assert kept is not None
    assert kept.payload == b"21"
    client.publish("a.b", b"", exchange="amq.topic", headers={"x-retain": True})
    assert retained.get(b"a.b") is None


def test_get_keeps_exchange_and_routing_key(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "k")
    client.publish("k", exchange="amq.direct")
    got = client.call(Basic.Get(queue="q"))[0]
    assert (got.exchange, got.routing_key) == ("amq.direct", "k")


# Sender-selected distribution behind the first exchange


def two_exchanges(client: Client) -> None:
    """``x1`` (direct) -rk1-> ``x2`` (topic) -rk2-> ``q``."""
    client.exchange("x1", "direct")
    client.exchange("x2", "topic")
    client.declare("q")
    client.ask(Exchange.Bind(destination="x2", source="x1", routing_key="rk1"))
    client.bind("q", "x2", "rk2")


@pytest.mark.parametrize(
    "headers",
    [
        {"CC": ["rk1", "rk2"]},
        {"CC": ["rk1"], "BCC": ["rk2"]},
        {"BCC": ["rk1", "rk2"]},
        {"CC": ["rk2"], "BCC": ["rk1"]},
    ],
)
def test_copies_are_routing_keys_at_every_exchange_on_the_way(
    client: Client, headers: dict[str, list[str]]
) -> None:
    two_exchanges(client)
    client.publish("", b"m", exchange="x1", headers=headers, mandatory=True)
    assert client.take() == []
    assert client.counts("q") == (1, 0)
    assert client.get("q") == b"m"


def test_the_first_key_also_counts_behind_an_exchange_that_a_copy_led_to(client: Client) -> None:
    two_exchanges(client)
    client.publish("rk2", b"m", exchange="x1", headers={"CC": ["rk1"]})
    assert client.get("q") == b"m"


def test_copies_are_routing_keys_at_an_alternate_exchange(client: Client) -> None:
    client.exchange("other", "direct")
    client.exchange("e", "direct", arguments={"alternate-exchange": "other"})
    client.declare("q")
    client.bind("q", "other", "cc")
    client.publish("k", b"m", exchange="e", headers={"CC": ["cc"]})
    assert client.get("q") == b"m"


def test_an_alternate_exchange_gets_only_what_none_of_the_keys_leads_on(client: Client) -> None:
    client.exchange("other", "fanout")
    client.exchange("e", "direct", arguments={"alternate-exchange": "other"})
    client.declare("q")
    client.declare("unroutable")
    client.bind("q", "e", "k")
    client.bind("unroutable", "other", "")
    client.publish("k", b"m", exchange="e", headers={"CC": ["nowhere"]})
    client.publish("nowhere", b"m", exchange="e", headers={"BCC": ["k"]})
    assert client.counts("q") == (2, 0)
    assert client.counts("unroutable") == (0, 0)


def test_dead_letters_go_by_copies_at_every_exchange_on_the_way(client: Client) -> None:
    two_exchanges(client)
    client.declare("dying", arguments={"x-dead-letter-exchange": "x1", "x-message-ttl": 0})
    client.publish("dying", b"m", headers={"CC": ["rk1", "rk2"]})
    assert client.get("q") == b"m"


@pytest.mark.pure
def test_an_exchange_that_ignores_keys_is_asked_once_for_all_copies(client: Client) -> None:
    client.exchange("f", "fanout")
    client.declare("q")
    client.bind("q", "f", "")
    exchange = client.server.vhost.exchanges["f"]
    asked = 0
    match = exchange.match

    def counted(address: Address, message: Message | None) -> list[Binding]:
        nonlocal asked
        asked += 1
        return match(address, message)

    exchange.match = counted  # type: ignore[method-assign]
    client.publish("", b"m", exchange="f", headers={"CC": [str(n) for n in range(1000)]})
    # Once more for the route of the first key, which is kept.
    assert asked <= 2
    assert client.counts("q") == (1, 0)


@pytest.mark.pure
@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_routing_keys_in_headers_are_looked_up_so_often_at_each_exchange(name: str) -> None:
    """Keys and exchanges multiply, and both are the client's."""

    def looks(exchanges: int, keys: int) -> int:
        client = Server().open()
        for number in range(exchanges):
            client.exchange(f"x{number}", "topic")
            if number:
                client.call(Exchange.Bind(0, f"x{number}", f"x{number - 1}", "#"))
        headers = {name: [f"{key}" for key in range(keys)]}
        frames = publish_frames("k", exchange="x0", headers=headers)
        return calls(TopicExchange.match, lambda: client.feed(frames))

    most = looks(8, MAX_COPIES)
    assert looks(16, MAX_COPIES) <= 2.2 * most
    assert looks(8, MAX_COPIES + 1) == looks(8, 8 * MAX_COPIES) == looks(8, 0)


@pytest.mark.parametrize("split", [0, 600, MAX_COPIES + 1])
def test_more_routing_keys_in_headers_than_that_are_406(client: Client, split: int) -> None:
    keys = [f"{key}" for key in range(MAX_COPIES + 1)]
    client.publish("q", b"m", headers={"CC": keys[:split], "BCC": keys[split:]})
    text = f"PRECONDITION_FAILED - headers 'CC' and 'BCC' have more than {MAX_COPIES} routing keys"
    assert_channel_closed(client.take()[0], 406, text)
