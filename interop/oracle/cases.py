"""What is asked of RabbitMQ and of Trivium: declarations, and everything that is an error."""

from __future__ import annotations

from typing import Any, Final

from interop.oracle.steps import (
    Case,
    bind,
    consume,
    delete,
    drop,
    durable,
    exchange,
    get,
    join,
    passive,
    purge,
    qos,
    queue,
    raw,
    say,
    typed,
    unbind,
)
from interop.oracle.wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    Await,
    Opening,
    Publish,
    Raw,
    Typed,
    frame,
)

_EXCHANGES: Final = (
    *(Case(f"declare {kind}", (exchange(kind=kind),)) for kind in ("direct", "fanout", "topic")),
    Case("declare headers", (exchange(kind="headers", durable=True),)),
    Case("declare unknown type", (exchange(kind="nonsense"),)),
    Case("declare again of an unknown type", (exchange(), exchange(kind="nonsense"))),
    Case("declare the same", (exchange(), exchange())),
    Case("declare of another type", (exchange(), exchange(kind="fanout"))),
    Case("declare durable after transient", (exchange(), exchange(durable=True))),
    Case("declare transient after durable", (exchange(durable=True), exchange())),
    Case("declare auto-delete after not", (exchange(), exchange(auto_delete=True))),
    Case("declare internal after not", (exchange(), exchange(internal=True))),
    Case("declare with several differences", (exchange(), exchange(kind="topic", durable=True))),
    Case("declare passively what is not there", (exchange(passive=True),)),
    Case("declare passively of another type", (exchange(), exchange(kind="topic", passive=True))),
    Case("declare passively an unknown type", (exchange(), exchange(kind="nope", passive=True))),
    Case("declare a reserved name", (exchange("amq.new~"),)),
    Case("declare amq.direct as it is", (exchange("amq.direct", durable=True),)),
    Case("declare amq.direct as another", (exchange("amq.direct", kind="fanout", durable=True),)),
    Case("declare the default exchange", (exchange(""),)),
    Case("declare the default exchange passively", (exchange("", passive=True),)),
    Case("declare with alternate", (exchange(options={"alternate-exchange": "y~"}),)),
    Case("declare with a number as alternate", (exchange(options={"alternate-exchange": 1}),)),
    Case(
        "declare with another alternate",
        (
            exchange(options={"alternate-exchange": "y~"}),
            exchange(options={"alternate-exchange": "z~"}),
            exchange(),
        ),
    ),
    Case(
        "declare with an unknown argument",
        (exchange(options={"team": "a"}), exchange(options={"team": "b"}), exchange()),
    ),
    Case("delete what is not there", (drop(),)),
    Case("delete the default exchange", (drop(""),)),
    Case("delete amq.direct", (drop("amq.direct"),)),
    Case("delete amq.topic if unused", (drop("amq.topic", if_unused=True),)),
    Case("delete a reserved name that is not there", (drop("amq.nothing~"),)),
    Case("delete while bound", (exchange(), queue(), bind(), drop(if_unused=True), drop())),
    Case("delete unused", (exchange(), drop(if_unused=True))),
    Case(
        "auto-delete with the last binding",
        (exchange(auto_delete=True), queue(), bind(), unbind(), exchange(passive=True)),
    ),
    Case("join to one that is not there", (exchange(), join())),
    Case("join from one that is not there", (exchange("y~"), join())),
    Case("join from the default exchange", (exchange("y~"), join(source=""))),
    Case("join to the default exchange", (exchange(), join(""))),
    Case("join twice", (exchange(), exchange("y~"), join(), join())),
    Case(
        "unjoin what is not there",
        (say("Exchange.Unbind", destination="y~", source="x~", routing_key=""),),
    ),
    Case(
        "unjoin from the default exchange",
        (exchange("y~"), say("Exchange.Unbind", destination="y~", source="", routing_key="")),
    ),
    Case("join to an internal one", (exchange(), exchange("y~", internal=True), join())),
    Case("publish to an internal one", (exchange(internal=True), Publish(exchange="x~"))),
    Case("publish to one that is not there", (Publish(exchange="x~"),)),
    Case("publish mandatory to nobody", (exchange(), Publish(exchange="x~", mandatory=True))),
    Case("publish mandatory to no queue", (Publish(key="q~", mandatory=True),)),
    Case("publish immediate", (queue(), Publish(key="q~", immediate=True))),
)

_BINDINGS: Final = (
    Case("bind", (queue(), bind(source="amq.direct", key="k"))),
    Case("bind a queue that is not there", (bind(source="amq.direct"),)),
    Case("bind to an exchange that is not there", (queue(), bind())),
    Case("bind neither is there", (bind(),)),
    Case("bind to the default exchange", (queue(), bind(source="", key="k"))),
    Case("bind without a last queue", (bind(""),)),
    Case("bind the last queue", (queue(), bind("", "amq.direct"))),
    Case(
        "bind another's exclusive queue", (queue(exclusive=True), bind(source="amq.fanout", on="b"))
    ),
    Case("unbind what was not bound", (queue(), unbind(source="amq.direct", key="k"))),
    Case("unbind a queue that is not there", (unbind(source="amq.direct"),)),
    Case("unbind from an exchange that is not there", (queue(), unbind())),
    Case("unbind from the default exchange", (queue(), unbind(source="", key="q~"))),
    *(
        Case(f"x-match {name}", (queue(), bind(source="amq.headers", options={"x-match": value})))
        for name, value in (
            ("all", "all"),
            ("any-with-x", "any-with-x"),
            ("nonsense", "nonsense"),
            ("number", 1),
            ("true", True),
            ("bytes", b"all"),
        )
    ),
    Case(
        "x-match nonsense at a direct exchange",
        (queue(), bind(source="amq.direct", options={"x-match": "nonsense"})),
    ),
)

#: Of a binding's argument and a message's header, whether they match.
_MATCHES: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("int and true", 1, True),
    ("zero and false", 0, False),
    ("int and int", 1, 1),
    ("int and int64", 1, Typed("l", 1)),
    ("byte and int", Typed("b", 1), 1),
    ("unsigned and int", Typed("i", 1), 1),
    ("short and unsigned short", Typed("s", 1), Typed("u", 1)),
    ("int and timestamp", 1, Typed("T", 1)),
    ("timestamp and timestamp", Typed("T", 1), Typed("T", 1)),
    ("int and double", 1, 1.0),
    ("float and double", Typed("f", 0.5), 0.5),
    ("decimal and int", Typed("D", (0, 1)), 1),
    ("decimal and double", Typed("D", (0, 1)), 1.0),
    ("decimal and decimal", Typed("D", (2, 100)), Typed("D", (2, 100))),
    ("decimal and another scale", Typed("D", (0, 1)), Typed("D", (2, 100))),
    ("text and bytes", "v", b"v"),
    ("bytes and text", b"v", "v"),
    ("bytes that are no text", b"\xff", b"\xff"),
    ("int and text", 1, "1"),
    ("void and anything", None, 1),
    ("void and false", None, False),
    ("int and void", 1, None),
    ("array and array", [1, "a"], [1, "a"]),
    ("array of int and of true", [1], [True]),
    ("array of int and of int64", [1], [Typed("l", 1)]),
    ("array of text and of bytes", ["v"], [b"v"]),
    ("array and shorter", [1, 2], [1]),
    ("table and table", {"a": 1}, {"a": 1}),
    ("table of int and of true", {"a": 1}, {"a": True}),
    ("table in another order", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ("table and array", {}, []),
)

_HEADERS: Final = tuple(
    Case(
        f"match {name}",
        (
            exchange(kind="headers"),
            queue(),
            bind(options={"a": argument}),
            Publish(exchange="x~", headers={"a": header}, mandatory=True),
        ),
    )
    for name, argument, header in _MATCHES
)

_QUEUES: Final = (
    Case("declare", (queue(), passive(), durable("d~"))),
    Case("declare without a name", (queue(""),)),
    Case("declare a reserved name", (queue("amq.q~"),)),
    Case("declare passively what is not there", (passive(),)),
    Case("declare passively a reserved name", (passive("amq.q~"),)),
    Case("declare passively without a last queue", (passive(""),)),
    Case("declare passively the last queue", (queue(), passive(""))),
    Case("declare without a name behind another", (queue(exclusive=True), queue(""))),
    Case("declare a reserved name wrongly", (queue("amq.q~", {"x-max-length": -1}),)),
    Case(
        "purge leaves the unacknowledged", (queue(), Publish(key="q~"), get(no_ack=False), purge())
    ),
    Case("declare passively with others", (queue(), passive(durable=True, auto_delete=True))),
    Case("declare durable after transient", (queue(), durable())),
    Case("declare transient after durable", (durable(), queue())),
    Case("declare auto-delete after not", (queue(), queue(auto_delete=True))),
    Case("declare with several differences", (queue(), durable(auto_delete=True))),
    Case("declare exclusive after not", (queue(), queue(exclusive=True))),
    Case("declare shared after exclusive", (queue(exclusive=True), queue())),
    Case("declare exclusive again", (queue(exclusive=True), queue(exclusive=True))),
    Case(
        "declare exclusive and durable after exclusive",
        (queue(exclusive=True), durable(exclusive=True)),
    ),
    Case(
        "declare exclusive after exclusive and durable",
        (durable(exclusive=True), queue(exclusive=True)),
    ),
    Case("declare another's exclusive", (queue(exclusive=True), queue(on="b"))),
    Case("declare another's exclusive passively", (queue(exclusive=True), passive(on="b"))),
    Case(
        "declare another's exclusive exclusively",
        (queue(exclusive=True), queue(exclusive=True, on="b")),
    ),
    Case("delete what is not there", (delete(),)),
    Case("delete without a last queue", (delete(""),)),
    Case(
        "delete with a message if empty",
        (queue(), Publish(key="q~"), delete(if_empty=True), delete()),
    ),
    Case("delete while consumed if unused", (queue(), consume(), delete(if_unused=True))),
    Case(
        "delete unused and not empty",
        (queue(), Publish(key="q~"), delete(if_empty=True, if_unused=True)),
    ),
    Case("delete a reserved name that is not there", (delete("amq.q~"),)),
    Case("delete another's exclusive", (queue(exclusive=True), delete(on="b"))),
    Case("purge what is not there", (purge(),)),
    Case("purge without a last queue", (purge(""),)),
    Case("purge", (queue(), Publish(key="q~"), Publish(key="q~"), purge())),
    Case("purge another's exclusive", (queue(exclusive=True), purge(on="b"))),
    Case("get what is not there", (get(),)),
    Case("get without a last queue", (get(""),)),
    Case("get nothing", (queue(), get())),
    Case("get one", (queue(), Publish(key="q~"), get())),
    Case("get another's exclusive", (queue(exclusive=True), get(on="b"))),
)

#: Arguments of queues: name of the case, the arguments, whether it is durable.
_DECLARED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("message-ttl 0", {"x-message-ttl": 0}),
    ("message-ttl -1", {"x-message-ttl": -1}),
    ("message-ttl text", {"x-message-ttl": "1"}),
    ("message-ttl double", {"x-message-ttl": 10.0}),
    ("message-ttl true", {"x-message-ttl": True}),
    ("message-ttl void", {"x-message-ttl": None}),
    ("message-ttl timestamp", {"x-message-ttl": Typed("T", 1000)}),
    ("message-ttl decimal", {"x-message-ttl": Typed("D", (0, 1000))}),
    ("message-ttl byte", {"x-message-ttl": Typed("b", 100)}),
    ("message-ttl int64", {"x-message-ttl": Typed("l", 100)}),
    ("message-ttl of two centuries", {"x-message-ttl": Typed("l", 200 * 365 * 86_400_000)}),
    ("expires 0", {"x-expires": 0}),
    ("expires 60000", {"x-expires": 60_000}),
    ("expires text", {"x-expires": "60000"}),
    ("max-length 0", {"x-max-length": 0}),
    ("max-length -1", {"x-max-length": -1}),
    ("max-length text", {"x-max-length": "1"}),
    ("max-length-bytes -1", {"x-max-length-bytes": -1}),
    ("max-priority 0", {"x-max-priority": 0}),
    ("max-priority 5", {"x-max-priority": 5}),
    ("max-priority 255", {"x-max-priority": 255}),
    ("max-priority 256", {"x-max-priority": 256}),
    ("max-priority -1", {"x-max-priority": -1}),
    ("max-priority text", {"x-max-priority": "5"}),
    ("overflow drop-head", {"x-overflow": "drop-head"}),
    ("overflow reject-publish-dlx", {"x-overflow": "reject-publish-dlx"}),
    ("overflow nonsense", {"x-overflow": "nonsense"}),
    ("overflow number", {"x-overflow": 1}),
    ("dead-letter-exchange", {"x-dead-letter-exchange": "x~"}),
    ("dead-letter-exchange number", {"x-dead-letter-exchange": 1}),
    ("dead-letter-routing-key alone", {"x-dead-letter-routing-key": "k"}),
    (
        "dead-letter-routing-key number",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 1},
    ),
    ("dead-letter-strategy nonsense", {"x-dead-letter-strategy": "nonsense"}),
    ("dead-letter-strategy at-most-once", {"x-dead-letter-strategy": "at-most-once"}),
    ("single-active-consumer", {"x-single-active-consumer": True}),
    ("single-active-consumer text", {"x-single-active-consumer": "true"}),
    ("queue-mode lazy", {"x-queue-mode": "lazy"}),
    ("queue-mode nonsense", {"x-queue-mode": "nonsense"}),
    ("queue-mode number", {"x-queue-mode": 1}),
    ("queue-version 2", {"x-queue-version": 2}),
    ("queue-version 3", {"x-queue-version": 3}),
    ("queue-version text", {"x-queue-version": "2"}),
    ("queue-master-locator", {"x-queue-master-locator": "min-masters"}),
    ("queue-master-locator number", {"x-queue-master-locator": 1}),
    ("queue-leader-locator", {"x-queue-leader-locator": "client-local"}),
    ("queue-leader-locator nonsense", {"x-queue-leader-locator": "nonsense"}),
    ("ha-policy", {"x-ha-policy": "all"}),
    ("unknown", {"x-unknown": "anything", "team": 1}),
    ("alternate-exchange", {"alternate-exchange": 1}),
    ("consumer-timeout", {"x-consumer-timeout": 60_000}),
    ("delivery-limit", {"x-delivery-limit": 3}),
    ("max-age", {"x-max-age": "1h"}),
    ("max-in-memory-length", {"x-max-in-memory-length": 1}),
    ("max-in-memory-length -1", {"x-max-in-memory-length": -1}),
    ("quorum-initial-group-size", {"x-quorum-initial-group-size": 3}),
    ("initial-cluster-size", {"x-initial-cluster-size": 3}),
    ("stream-max-segment-size-bytes", {"x-stream-max-segment-size-bytes": 1000}),
    ("stream-filter-size-bytes", {"x-stream-filter-size-bytes": 32}),
    ("queue-type classic", {"x-queue-type": "classic"}),
    ("queue-type nonsense", {"x-queue-type": "nonsense"}),
    ("queue-type number", {"x-queue-type": 1}),
)

_QUORUM: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("plain", {}),
    ("delivery-limit", {"x-delivery-limit": 3}),
    ("delivery-limit -1", {"x-delivery-limit": -1}),
    ("delivery-limit text", {"x-delivery-limit": "3"}),
    ("max-priority", {"x-max-priority": 5}),
    ("message-ttl", {"x-message-ttl": 1000}),
    ("quorum-initial-group-size -1", {"x-quorum-initial-group-size": -1}),
    ("quorum-initial-group-size 0", {"x-quorum-initial-group-size": 0}),
    ("quorum-initial-group-size text", {"x-quorum-initial-group-size": "3"}),
    ("queue-leader-locator", {"x-queue-leader-locator": "balanced"}),
    ("queue-leader-locator nonsense", {"x-queue-leader-locator": "nonsense"}),
    ("queue-mode", {"x-queue-mode": "lazy"}),
    ("overflow reject-publish-dlx", {"x-overflow": "reject-publish-dlx"}),
    ("max-in-memory-length", {"x-max-in-memory-length": 1}),
    ("max-age", {"x-max-age": "1h"}),
    ("unknown", {"x-unknown": 1}),
    ("dead-letter-strategy nonsense", {"x-dead-letter-strategy": "nonsense"}),
)

_STREAM: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("plain", {}),
    ("max-age", {"x-max-age": "1h"}),
    ("max-age nonsense", {"x-max-age": "1x"}),
    ("max-age number", {"x-max-age": 1000}),
    ("max-length", {"x-max-length": 5}),
    ("max-length-bytes", {"x-max-length-bytes": 1_000_000}),
    ("max-length-bytes text", {"x-max-length-bytes": "1"}),
    ("message-ttl", {"x-message-ttl": 1000}),
    ("expires", {"x-expires": 1000}),
    ("overflow", {"x-overflow": "drop-head"}),
    ("dead-letter-exchange", {"x-dead-letter-exchange": ""}),
    ("single-active-consumer", {"x-single-active-consumer": True}),
    ("queue-mode", {"x-queue-mode": "lazy"}),
    ("max-priority", {"x-max-priority": 5}),
    ("segment size text", {"x-stream-max-segment-size-bytes": "1"}),
    ("segment size too large", {"x-stream-max-segment-size-bytes": Typed("l", 4_000_000_000)}),
    ("initial-cluster-size text", {"x-initial-cluster-size": "1"}),
    ("filter-size-bytes", {"x-stream-filter-size-bytes": 32}),
    ("unknown", {"x-unknown": 1}),
    ("partitions", {"x-partitions": 3}),
    ("partitions text", {"x-partitions": "3"}),
)

_ARGUMENTS: Final = (
    *(Case(f"argument {name}", (durable(options=options),)) for name, options in _DECLARED),
    *(Case(f"quorum {name}", (typed("quorum", options),)) for name, options in _QUORUM),
    *(Case(f"stream {name}", (typed("stream", options),)) for name, options in _STREAM),
    *(
        Case(f"{kind} {name}", (typed(kind, None, **arguments),))
        for kind in ("quorum", "stream", "nonsense")
        for name, arguments in (
            ("transient", {"durable": False}),
            ("exclusive", {"exclusive": True}),
            ("auto-delete", {"auto_delete": True}),
        )
    ),
    Case("quorum without a name", (queue("", {"x-queue-type": "quorum"}, durable=True),)),
    Case("stream without a name", (queue("", {"x-queue-type": "stream"}, durable=True),)),
    Case("quorum as classic", (typed("quorum"), durable())),
    Case("classic as quorum", (durable(), typed("quorum"))),
    Case("classic named after unnamed", (durable(), typed("classic"))),
    Case("classic unnamed after named", (typed("classic"), durable())),
    Case("stream as classic", (typed("stream"), durable())),
    Case("classic as stream", (durable(), typed("stream"))),
    Case("stream as quorum", (typed("stream"), typed("quorum"))),
    Case("stream of fewer partitions", (typed("stream", {"x-partitions": 3}), typed("stream"))),
)

#: Arguments with which a queue is declared, and those with which it is declared again.
_REDECLARED: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    ("the same", {"x-max-length": 1}, {"x-max-length": 1}),
    ("another number", {"x-max-length": 1}, {"x-max-length": 2}),
    ("int64 for int", {"x-max-length": 1}, {"x-max-length": Typed("l", 1)}),
    ("byte for int", {"x-max-length": 1}, {"x-max-length": Typed("b", 1)}),
    ("unsigned for int", {"x-max-length": 1}, {"x-max-length": Typed("i", 1)}),
    ("double for int", {"x-message-ttl": 10}, {"x-message-ttl": 10.0}),
    ("true for int", {"x-max-length": 1}, {"x-max-length": True}),
    ("text for int", {"x-max-length": 1}, {"x-max-length": "1"}),
    ("text for text", {"x-overflow": "drop-head"}, {"x-overflow": "reject-publish"}),
    ("nothing for int", {"x-max-length": 1}, {}),
    ("int for nothing", {}, {"x-max-length": 1}),
    ("true for false", {"x-single-active-consumer": False}, {"x-single-active-consumer": True}),
    ("int64 for nothing", {}, {"x-message-ttl": Typed("l", 1 << 34)}),
    ("text for nothing", {}, {"x-dead-letter-exchange": "x~"}),
    ("unknown for unknown", {"team": "a"}, {"team": "b"}),
    ("unknown for nothing", {}, {"x-unknown": "b"}),
    ("nothing for unknown", {"x-ha-policy": "all"}, {}),
    ("lazy for nothing", {}, {"x-queue-mode": "lazy"}),
    ("locator for nothing", {}, {"x-queue-master-locator": "min-masters"}),
    ("invalid for nothing", {}, {"x-message-ttl": -1}),
    ("two differ", {"x-max-length": 1, "x-expires": 60_000}, {"x-max-length": 2}),
    ("max-priority for nothing", {}, {"x-max-priority": 5}),
    ("max-priority for another", {"x-max-priority": 4}, {"x-max-priority": 5}),
    ("queue-version for nothing", {}, {"x-queue-version": 2}),
    ("delivery-limit for nothing", {}, {"x-delivery-limit": 2}),
)

_AGAIN: Final = tuple(
    Case(f"again {name}", (durable(options=first), durable(options=second)))
    for name, first, second in _REDECLARED
)

_CONSUMERS: Final = (
    Case("consume what is not there", (consume(),)),
    Case("consume without a last queue", (consume(""),)),
    Case("consume without a tag", (queue(), consume(tag=""))),
    Case("consume with a tag again", (queue(), consume(), consume())),
    Case("consume exclusively", (queue(), consume(exclusive=True), consume(tag="d"))),
    Case(
        "consume exclusively what is consumed",
        (queue(), consume(), consume(tag="d", exclusive=True)),
    ),
    Case(
        "consume what is exclusively consumed by another",
        (queue(), consume(exclusive=True), get(on="b"), consume(on="b", tag="e")),
    ),
    Case("get what is exclusively consumed", (queue(), consume(exclusive=True), get())),
    Case("consume another's exclusive", (queue(exclusive=True), consume(on="b"))),
    Case("priority", (queue(), consume(options={"x-priority": 5}))),
    Case("priority text", (queue(), consume(options={"x-priority": "5"}))),
    Case("priority true", (queue(), consume(options={"x-priority": True}))),
    Case("priority double", (queue(), consume(options={"x-priority": 5.0}))),
    Case("priority int64", (queue(), consume(options={"x-priority": Typed("l", 1 << 40)}))),
    Case("unknown argument", (queue(), consume(options={"x-unknown": 1}))),
    Case(
        "stream offset on a classic queue", (queue(), consume(options={"x-stream-offset": "first"}))
    ),
    Case(
        "stream offset on a quorum queue",
        (typed("quorum"), consume(options={"x-stream-offset": "first"})),
    ),
    Case(
        "stream offset nonsense on a classic queue",
        (queue(), consume(options={"x-stream-offset": "nonsense"})),
    ),
    Case("cancel what is not there", (say("Basic.Cancel", consumer_tag="c"),)),
    Case(
        "exclusive consumer of a single active one",
        (queue(options={"x-single-active-consumer": True}), consume(exclusive=True)),
    ),
    Case(
        "cancelled with its queue",
        (queue(), consume(), delete(), Await("a", 1, "Basic.Cancel")),
    ),
    Case("stream without prefetch", (typed("stream"), consume())),
    Case("stream without acknowledgement", (typed("stream"), qos(), consume(no_ack=True))),
    Case("stream exclusively", (typed("stream"), qos(), consume(exclusive=True))),
    Case("stream offset", (typed("stream"), qos(), consume(options={"x-stream-offset": 5}))),
    Case(
        "stream offset nonsense",
        (typed("stream"), qos(), consume(options={"x-stream-offset": "nonsense"})),
    ),
    Case("stream offset -1", (typed("stream"), qos(), consume(options={"x-stream-offset": -1}))),
    Case(
        "stream offset true", (typed("stream"), qos(), consume(options={"x-stream-offset": True}))
    ),
    Case("stream priority", (typed("stream"), qos(), consume(options={"x-priority": 1}))),
    Case("stream get", (typed("stream"), get())),
    Case("stream purge", (typed("stream"), purge())),
    Case("stream delete", (typed("stream"), delete())),
    Case("stream delete if empty", (typed("stream"), delete(if_empty=True))),
    Case("quorum exclusive consumer", (typed("quorum"), consume(exclusive=True))),
    Case("quorum delete if empty", (typed("quorum"), delete(if_empty=True))),
    Case("quorum delete if unused", (typed("quorum"), delete(if_unused=True))),
    Case("quorum global prefetch", (typed("quorum"), qos(1, global_=True), consume())),
    Case("reply queue with acknowledgement", (consume("amq.rabbitmq.reply-to"),)),
    Case(
        "reply queue twice",
        (
            consume("amq.rabbitmq.reply-to", no_ack=True),
            consume("amq.rabbitmq.reply-to", no_ack=True, tag="d"),
        ),
    ),
    Case("reply queue passively", (passive("amq.rabbitmq.reply-to"),)),
    Case("reply queue that is not there", (passive("amq.rabbitmq.reply-to.nobody"),)),
    Case("reply queue that is not there, declared", (queue("amq.rabbitmq.reply-to.nobody"),)),
    Case("reply queue deleted", (delete("amq.rabbitmq.reply-to"),)),
    Case("reply queue got", (get("amq.rabbitmq.reply-to"),)),
    Case("reply queue declared", (queue("amq.rabbitmq.reply-to"),)),
    Case("prefetch size", (say("Basic.Qos", prefetch_size=1, prefetch_count=1),)),
)

_BASIC: Final = (
    Case("ack unknown", (say("Basic.Ack", delivery_tag=1),)),
    Case("ack unknown and all before", (say("Basic.Ack", delivery_tag=7, multiple=True),)),
    Case("ack all of none", (say("Basic.Ack", delivery_tag=0, multiple=True),)),
    Case("ack zero", (say("Basic.Ack", delivery_tag=0),)),
    Case("nack unknown", (say("Basic.Nack", delivery_tag=1),)),
    Case("nack all of none", (say("Basic.Nack", delivery_tag=0, multiple=True),)),
    Case("reject unknown", (say("Basic.Reject", delivery_tag=1),)),
    Case(
        "ack twice",
        (
            queue(),
            Publish(key="q~"),
            get(no_ack=False),
            say("Basic.Ack", delivery_tag=1),
            say("Basic.Ack", delivery_tag=1),
        ),
    ),
    Case("recover", (say("Basic.Recover", requeue=True),)),
    Case("recover without requeue", (say("Basic.Recover", requeue=False),)),
    Case("flow off", (say("Channel.Flow", active=False),)),
    Case("confirm after tx", (say("Tx.Select"), say("Confirm.Select"))),
    Case("tx after confirm", (say("Confirm.Select"), say("Tx.Select"))),
    Case("commit without tx", (say("Tx.Commit"),)),
    Case("rollback without tx", (say("Tx.Rollback"),)),
    Case(
        "commit of an unknown tag",
        (say("Tx.Select"), say("Basic.Ack", delivery_tag=1), say("Tx.Commit")),
    ),
    Case("expiration nonsense", (queue(), Publish(key="q~", properties=b"\x01\x00\x04soon"))),
    Case("expiration negative", (queue(), Publish(key="q~", properties=b"\x01\x00\x02-1"))),
    Case("expiration empty", (queue(), Publish(key="q~", properties=b"\x01\x00\x00"))),
    Case("user-id of another", (Publish(key="q~", properties=b"\x00\x10\x03bob"),)),
    Case("user-id of oneself", (Publish(key="q~", properties=b"\x00\x10\x05guest"),)),
    Case("CC no array", (Publish(key="q~", headers={"CC": "k"}),)),
    Case("BCC no array", (Publish(key="q~", headers={"BCC": 1}),)),
    Case("CC of numbers", (queue(), Publish(key="q~", headers={"CC": [1]}))),
)

_OPEN_CHANNEL: Final = b"\x00\x14\x00\x0a\x00"
_GREETING: Final = Opening(header=b"HTTP/1.1")


def _fatal(kind: int, channel: int, payload: bytes) -> Raw:
    return Raw("a", 1, frame(kind, channel, payload), is_fatal=True)


_PROTOCOL: Final = (
    Case("heartbeat", (raw(HEARTBEAT, 0),)),
    Case("heartbeat on a channel", (raw(HEARTBEAT, 1),)),
    Case("heartbeat on a closed channel", (raw(HEARTBEAT, 7),)),
    Case("heartbeat with a payload", (raw(HEARTBEAT, 0, b"x"),)),
    Case("unknown frame type", (raw(4, 1, b"x"),)),
    Case("unknown frame type on channel 0", (raw(4, 0, b"x"),)),
    Case("no frame end", (Raw("a", 1, frame(METHOD, 1, b"\x00\x3c\x00\x6e\x01")[:-1] + b"\x00"),)),
    Case("header without a method", (raw(HEADER, 1, b"\x00\x3c\x00\x00" + bytes(10)),)),
    Case("body without a method", (raw(BODY, 1, b"x"),)),
    Case(
        "header on a channel that is not open",
        (_fatal(HEADER, 7, b"\x00\x3c\x00\x00" + bytes(10)),),
    ),
    Case("update-secret", (say("Connection.UpdateSecret", new_secret="x", reason="y", channel=0),)),
    Case("header on channel 0", (raw(HEADER, 0, b"\x00\x3c\x00\x00" + bytes(10)),)),
    Case("body on channel 0", (raw(BODY, 0, b"x"),)),
    Case("unknown class", (raw(METHOD, 1, b"\x00\x63\x00\x0a"),)),
    Case("unknown method", (raw(METHOD, 1, b"\x00\x3c\x00\x63"),)),
    Case("unknown method on channel 0", (raw(METHOD, 0, b"\x00\x0a\x00\x63"),)),
    Case("unknown class on channel 0", (raw(METHOD, 0, b"\x00\x63\x00\x0a"),)),
    Case("channel method on channel 0", (raw(METHOD, 0, _OPEN_CHANNEL),)),
    Case("connection method on a channel", (raw(METHOD, 1, b"\x00\x0a\x00\x28\x01/\x00\x00"),)),
    Case("second connection.open", (raw(METHOD, 0, b"\x00\x0a\x00\x28\x01/\x00\x00"),)),
    Case("a server's method", (raw(METHOD, 1, b"\x00\x3c\x00\x0b"),)),
    Case("second channel.open", (raw(METHOD, 1, _OPEN_CHANNEL),)),
    Case("method on a channel that is not open", (_fatal(METHOD, 7, b"\x00\x5a\x00\x0a"),)),
    Case("empty method frame", (raw(METHOD, 1, b"\x00"),)),
    Case("arguments too short", (raw(METHOD, 1, b"\x00\x32\x00\x0a\x00\x00"),)),
    Case("arguments too long", (raw(METHOD, 1, b"\x00\x5a\x00\x0axx"),)),
    Case(
        "table with an unknown type",
        (raw(METHOD, 1, b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x03\x01a?"),),
    ),
    Case(
        "a method between method and content",
        (Raw("a", 1, frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00")), say("Tx.Select")),
    ),
    Case(
        "a body before its header",
        (
            Raw(
                "a",
                1,
                frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00") + frame(BODY, 1, b"x"),
            ),
        ),
    ),
    Case(
        "a header of another class",
        (
            Raw(
                "a",
                1,
                frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00")
                + frame(HEADER, 1, b"\x00\x32\x00\x00" + bytes(10)),
            ),
        ),
    ),
    Case(
        "a body longer than its header says",
        (
            Raw(
                "a",
                1,
                frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00")
                + frame(HEADER, 1, b"\x00\x3c\x00\x00" + bytes(7) + b"\x01\x00\x00")
                + frame(BODY, 1, b"xx"),
            ),
        ),
    ),
    Case("channel beyond channel_max", (say("Tx.Select", channel=3),), Opening(channel_max=2)),
    Case("greeting of another protocol", (), _GREETING),
    Case("frame_max too small", (), Opening(frame_max=1000)),
    Case("frame_max too large", (), Opening(frame_max=1 << 20)),
    Case("channel_max too large", (), Opening(channel_max=4000)),
    Case("unknown vhost", (), Opening(vhost="nowhere")),
    Case("wrong password", (), Opening(response="\x00guest\x00wrong")),
    Case("wrong password, not told", (), Opening(response="\x00guest\x00wrong", capabilities={})),
    Case("unknown mechanism", (), Opening(mechanism="NONSENSE")),
    Case("credentials that are none", (), Opening(response="guest")),
    Case(
        "channel.open during the handshake", (), Opening(instead=(raw(METHOD, 1, _OPEN_CHANNEL),))
    ),
)


def _grouped(group: str, cases: tuple[Case, ...]) -> list[Case]:
    return [Case(f"{group}: {c.name}", c.steps, c.opening) for c in cases]


CASES: Final = [
    *_grouped("exchange", _EXCHANGES),
    *_grouped("binding", _BINDINGS),
    *_grouped("headers", _HEADERS),
    *_grouped("queue", _QUEUES),
    *_grouped("declare", _ARGUMENTS),
    *_grouped("redeclare", _AGAIN),
    *_grouped("consumer", _CONSUMERS),
    *_grouped("basic", _BASIC),
    *_grouped("protocol", _PROTOCOL),
]
