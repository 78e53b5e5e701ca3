"""What passes messages on does so while its declarer might declare it again.

One table has the ways by which a message goes on by itself: a binding, a dead letter exchange, an
alternate exchange. Each is declared by every road that declares, needs each of its permissions by
every road that publishes, and works again when they are back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Exchange, Queue

from tests.support import mqtt, native
from tests.support.core import drain
from tests.support.metrics import metrics_text
from tests.support.permitted import (
    EVERY,
    TOPIC,
    Need,
    ScopedServer,
    Server,
    TokenServer,
    make_server,
)
from tests.support.simulated import Host
from trivium.config import EVERYTHING, AuthConfig, Config, UserConfig
from trivium.observability.audit import KINDS
from trivium.routing.exchanges import Binding, Declarer
from trivium.runtime import user_deletion
from trivium.security.identity import ADMINISTRATOR, Identity
from trivium.security.passwords import hash_password
from trivium.security.permissions import CONFIGURE, READ, WRITE, grants_of
from trivium.vhost import suspensions
from trivium.vhost.policies import Policy
from trivium.vhost.routes import Routes
from trivium_native.wire import frames


def declares(server: Server, road: str, user: str, *declarations: dict[str, Any]) -> None:
    """Have ``user`` declare and bind, by AMQP or the native protocol; it must be admitted."""
    for fields in declarations:
        if road == "native":
            is_binding = "pattern" in fields
            server.native(user).ask(frames.BIND if is_binding else frames.DECLARE, **fields)
            continue
        found = server.amqp(user).call(_by_amqp(fields))
        assert found[0].name.endswith("Ok"), found


def _by_amqp(fields: dict[str, Any]) -> Any:
    if "pattern" in fields:
        key = fields["pattern"].decode()
        if fields["kind"] == "exchange":
            return Exchange.Bind(
                destination=fields["name"], source=fields["exchange"], routing_key=key
            )
        return Queue.Bind(queue=fields["name"], exchange=fields["exchange"], routing_key=key)
    arguments = fields["arguments"]
    if fields["kind"] == "queue":
        return Queue.Declare(queue=fields["name"], durable=True, arguments=arguments)
    return Exchange.Declare(
        exchange=fields["name"], exchange_type="topic", durable=True, arguments=arguments
    )


def publishes(server: Server, road: str, exchange: str, key: str) -> None:
    """Have root publish a message."""
    if road == "mqtt":
        assert exchange == "amq.topic"
        server.mqtt("root", "sender").feed(mqtt.publish(key.replace(".", "/"), b"m", 1, 9, 5))
    elif road == "amqp":
        server.amqp("root").publish(key, exchange=exchange)
    else:
        body = native.publish(native.entry(key=key.encode(), exchange=exchange.encode()))
        assert server.native("root").send(frames.PUBLISH, 7, body)[0][0] == frames.CONFIRM
    server.settle()


def bound(exchange: str, kind: str, name: str, key: bytes = b"") -> dict[str, Any]:
    return {"exchange": exchange, "kind": kind, "name": name, "pattern": key}


def made(kind: str, **arguments: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return {"kind": kind, "name": "n", "arguments": named}


@dataclass(frozen=True)
class Way:
    """A way on, what its declarer needs, and where a message goes in; it comes out in ``sink``, or
    in the stream ``s``."""

    name: str
    needs: list[Need]
    declaration: dict[str, Any]
    exchange: str
    key: str
    roads: tuple[str, ...] = ("amqp", "native")
    #: what root adds
    rest: list[dict[str, Any]] = field(default_factory=list)
    is_stream: bool = False


READ_TOPIC: list[Need] = [(READ, "amq.topic"), (TOPIC + READ, "a.b")]
TO_SINK = bound("y", "queue", "sink", b"#")
DEAD = {"x_message_ttl": 0, "x_dead_letter_exchange": "y"}
WAYS = [
    Way(
        "topic to queue",
        [(WRITE, "sink"), *READ_TOPIC],
        bound("amq.topic", "queue", "sink", b"a.b"),
        "amq.topic",
        "a.b",
        ("mqtt", "amqp", "native"),
    ),
    Way(
        "topic to stream",
        [(WRITE, "s"), *READ_TOPIC],
        bound("amq.topic", "stream", "s", b"a.b"),
        "amq.topic",
        "a.b",
        ("mqtt", "amqp", "native"),
        is_stream=True,
    ),
    Way(
        "topic to exchange",
        [(WRITE, "y"), *READ_TOPIC],
        bound("amq.topic", "exchange", "y", b"a.b"),
        "amq.topic",
        "a.b",
        ("mqtt", "amqp", "native"),
        [TO_SINK],
    ),
    Way(
        "to an exchange with every topic",
        [(WRITE, "x"), (TOPIC + WRITE, EVERY), (READ, "amq.fanout")],
        bound("amq.fanout", "exchange", "x"),
        "amq.fanout",
        "any",
        rest=[bound("x", "queue", "sink", b"#")],
    ),
    Way(
        "fanout to queue",
        [(WRITE, "sink"), (READ, "amq.fanout")],
        bound("amq.fanout", "queue", "sink"),
        "amq.fanout",
        "any",
    ),
    Way(
        "headers to queue",
        [(WRITE, "sink"), (READ, "amq.headers")],
        bound("amq.headers", "queue", "sink"),
        "amq.headers",
        "any",
    ),
    Way(
        "dead letters",
        [(CONFIGURE, "n"), (READ, "n"), (WRITE, "y")],
        made("queue", **DEAD),
        "",
        "n",
        rest=[TO_SINK],
    ),
    Way(
        "dead letters with a key",
        [(CONFIGURE, "n"), (READ, "n"), (WRITE, "x"), (TOPIC + WRITE, "k")],
        made("queue", **DEAD | {"x_dead_letter_exchange": "x", "x_dead_letter_routing_key": "k"}),
        "",
        "n",
        rest=[bound("x", "queue", "sink", b"#")],
    ),
    Way(
        "alternate",
        [(CONFIGURE, "n"), (READ, "n"), (WRITE, "y")],
        made("exchange", alternate_exchange="y"),
        "n",
        "any",
        rest=[TO_SINK],
    ),
]


def prepared(way: Way, kind: type[Server] = Server, directory: Path | None = None) -> Server:
    """A server with all but what ann declares, and ann, who may."""
    server = make_server(kind=kind, directory=directory)
    root = server.native("root")
    root.ask(frames.DECLARE, kind="queue", name="sink")
    for fields in way.rest:
        root.ask(frames.BIND, **fields)
    server.permit("ann", way.needs)
    return server


def arrives(server: Server, way: Way, road: str = "native") -> bool:
    """Whether one message that root publishes comes out at the other end."""
    before = server.vhost.streams["s"].published
    publishes(server, road, way.exchange, way.key)
    server.advance(1)
    server.settle()
    if way.is_stream:
        count = server.vhost.streams["s"].published - before
    else:
        count = len(drain(server.vhost.queues["sink"]))
    assert count in (0, 1)
    return count == 1


def ways(*names: str) -> list[Any]:
    return [pytest.param(way, id=way.name) for way in WAYS if way.name in names or not names]


CASES = [
    pytest.param(way, road, missing, id=f"{way.name} by {road} without {missing}")
    for way in WAYS
    for road in ("amqp", "native")
    for missing in way.needs
    if missing[0] != CONFIGURE and not (road == "amqp" and way.is_stream)
]


@pytest.mark.parametrize(("way", "road", "missing"), CASES)
def test_it_passes_on_what_its_declarer_may_pass_on_now(way: Way, road: str, missing: Need) -> None:
    server = prepared(way)
    declares(server, road, "ann", way.declaration)
    for publisher in way.roads:
        assert arrives(server, way, publisher)
    server.permit("ann", [need for need in way.needs if need != missing])
    assert len(server.vhost.suspensions) == 1
    for publisher in way.roads:
        assert not arrives(server, way, publisher)
    server.permit("ann", way.needs)
    assert len(server.vhost.suspensions) == 0
    for publisher in way.roads:
        assert arrives(server, way, publisher)


@pytest.mark.parametrize("way", ways())
def test_what_the_broker_has_is_always_in_force(way: Way) -> None:
    """As is what an earlier version stored."""
    server = prepared(way)
    declares(server, "native", "root", way.declaration)
    vhost = server.vhost
    for item in suspensions.declared(vhost):
        if item is not None:
            suspensions.give(vhost, item, None)
    server.broker.permissions.set_user("root", grants_of({}, {}, [], []))
    server.broker.logins.permissions_changed("root")
    server.settle()
    server.broker.permissions.set_user("root", grants_of(EVERYTHING, {}, [], []))
    assert arrives(server, way)


@pytest.mark.parametrize("way", ways())
def test_a_key_passes_on_what_its_user_and_its_scopes_permit(way: Way) -> None:
    server = prepared(way, ScopedServer)
    declares(server, "native", "ann", way.declaration)
    assert isinstance(server, ScopedServer)
    # Another key says nothing about what was declared with this one.
    server.show("ann", ["read:*/none"])
    assert arrives(server, way)
    server.broker.permissions.set_user("ann", None)
    server.broker.logins.permissions_changed("ann")
    assert not arrives(server, way)


@pytest.mark.parametrize("way", ways())
def test_a_token_passes_on_what_its_scopes_permit(way: Way, tmp_path: Path) -> None:
    """Its user has nothing, and it may have expired since."""
    server = prepared(way, TokenServer, tmp_path)
    declares(server, "native", "ann", way.declaration)
    server.broker.permissions.set_user("ann", None)
    server.broker.logins.permissions_changed("ann")
    server.advance(3600)
    assert arrives(server, way)


def test_two_who_declare_the_same_with_other_rights_are_told_apart() -> None:
    """A route that is shared leaks no decision."""
    server = make_server()
    declares(server, "native", "root", {"kind": "queue", "name": "other", "arguments": {}})
    for user, queue in (("ann", "q"), ("bob", "other")):
        server.permit(user, [(WRITE, queue), (READ, "amq.fanout")])
        declares(server, "native", user, bound("amq.fanout", "queue", queue))
    server.permit("bob", [(WRITE, "other")])
    route = server.vhost.route(server.vhost.exchange("amq.fanout"), b"")
    assert [found.name for found in route.destinations] == ["q"]


@pytest.mark.parametrize("road", ["amqp", "native"])
@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_whoever_declares_it_again_with_rights_has_it(way: Way, road: str) -> None:
    server = prepared(way)
    server.permit("bob", way.needs)
    declares(server, road, "ann", way.declaration)
    server.permit("ann", [])
    assert not arrives(server, way)
    declares(server, road, "bob", way.declaration)
    assert len(server.vhost.suspensions) == 0
    assert arrives(server, way)
    server.permit("bob", [])
    assert not arrives(server, way)
    server.permit("ann", way.needs)
    assert arrives(server, way)


@pytest.mark.parametrize("road", ["amqp", "native"])
@pytest.mark.parametrize("way", ways("topic to exchange", "dead letters", "alternate"))
def test_it_is_in_force_while_any_of_those_who_declared_it_might_again(way: Way, road: str) -> None:
    """As workers do that each declare what they need at their start."""
    server = prepared(way)
    for user in ("bob", "ann", "bob"):
        server.permit(user, way.needs)
        declares(server, road, user, way.declaration)
    for first, second in (("ann", "bob"), ("bob", "ann")):
        server.permit(first, [])
        assert arrives(server, way)
        assert len(server.vhost.suspensions) == 0
        server.permit(second, [])
        assert not arrives(server, way)
        server.permit(first, way.needs)
        assert arrives(server, way)
        server.permit(second, way.needs)


def binding_of(server: Server, exchange: str = "amq.fanout") -> Binding:
    (found,) = server.vhost.exchange(exchange).bindings()
    return found


def declared_by(server: Server, *names: str) -> list[str]:
    """Who has a binding that these declare, one after another; names with ``-`` may not now."""
    vhost = server.vhost
    declarers = server.broker.authentication.declarers
    for name in names:
        patterns = {"/": {"write": "" if name.endswith("-") else ".*", "read": ".*"}}
        server.broker.permissions.set_user(name, grants_of(patterns, {}, [], []))
        guard = declarers.of(Identity(name), "/")
        vhost.bind(vhost.exchange("amq.fanout"), Binding(vhost.queue("q"), b"", guard=guard))
    kept = binding_of(server).guard
    assert isinstance(kept, Declarer)
    return [member.name for member in kept.members()]


def test_who_may_not_gives_way_to_another_declarer_and_then_the_oldest() -> None:
    server = make_server()
    names = ["1", "2", "3-", "4", "5", "6", "7", "8"]
    assert declared_by(server, *names) == names
    assert declared_by(server, "9") == ["1", "2", "4", "5", "6", "7", "8", "9"]
    assert declared_by(server, "10", "4") == ["2", "4", "5", "6", "7", "8", "9", "10"]


def test_declarers_with_many_scopes_give_way_before_there_are_eight() -> None:
    server = make_server()
    vhost = server.vhost
    for number in range(4):
        scopes = tuple(f"read:{number}/{'x' * 400}{each:03}" for each in range(20))
        guard = server.broker.authentication.declarers.of(Identity("a", scopes=scopes), "/")
        vhost.bind(vhost.exchange("amq.fanout"), Binding(vhost.queue("q"), b"", guard=guard))
    kept = binding_of(server).guard
    assert isinstance(kept, Declarer)
    assert len(kept.members()) == suspensions.MAX_MEMBER_BYTES // len(guard.row) < 4
    assert kept.members()[-1] is guard


def test_bindings_of_the_same_declarers_share_one_object() -> None:
    server = make_server()
    vhost = server.vhost
    for name in ("ann", "bob"):
        guard = server.broker.authentication.declarers.of(Identity(name), "/")
        for key in (b"1", b"2"):
            vhost.bind(vhost.exchange("amq.direct"), Binding(vhost.queue("q"), key, guard=guard))
    one, other = vhost.exchange("amq.direct").bindings()
    assert one.guard is other.guard


@pytest.mark.parametrize("way", ways("dead letters", "alternate"))
def test_whoever_declares_it_again_without_rights_changes_nothing(way: Way) -> None:
    """Such a declaration is admitted: what it passes on was permitted to who made it."""
    server = prepared(way)
    declares(server, "native", "ann", way.declaration)
    server.permit("bob", way.needs[:2])
    declares(server, "native", "bob", way.declaration)
    assert arrives(server, way)
    server.permit("bob", [])
    assert arrives(server, way)


def test_what_a_suspended_binding_leads_nowhere_is_unroutable() -> None:
    server = make_server()
    server.permit("ann", [(WRITE, "q"), (READ, "n")])
    declares(server, "native", "root", made("exchange"))
    declares(server, "native", "ann", bound("n", "queue", "q", b"k"))
    client = server.amqp("root")
    client.publish("k", exchange="n", mandatory=True)
    assert client.take() == []
    server.permit("ann", [])
    client.publish("k", exchange="n", mandatory=True)
    assert client.take()[0].name == "Basic.Return"


def test_what_a_suspended_binding_does_not_take_goes_to_the_alternate_exchange() -> None:
    server = make_server()
    root = server.native("root")
    root.ask(frames.DECLARE, kind="queue", name="sink")
    declares(server, "native", "root", made("exchange", alternate_exchange="y"), TO_SINK)
    server.permit("ann", [(WRITE, "q"), (READ, "n")])
    declares(server, "native", "ann", bound("n", "queue", "q", b"k"))
    publishes(server, "amqp", "n", "k")
    assert [len(drain(server.vhost.queues[name])) for name in ("q", "sink")] == [1, 0]
    server.permit("ann", [])
    publishes(server, "amqp", "n", "k")
    assert [len(drain(server.vhost.queues[name])) for name in ("q", "sink")] == [0, 1]


def test_a_dead_letter_that_must_arrive_waits_for_the_right() -> None:
    way = next(way for way in WAYS if way.name == "dead letters")
    server = prepared(way)
    strategy = {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    declaration = way.declaration | {"arguments": way.declaration["arguments"] | strategy}
    declares(server, "native", "ann", declaration)
    server.permit("ann", [])
    assert not arrives(server, way)
    server.permit("ann", way.needs)
    server.advance(2)
    server.settle()
    assert len(drain(server.vhost.queues["sink"])) == 1


def test_a_dead_letter_that_is_dropped_is_counted() -> None:
    way = next(way for way in WAYS if way.name == "dead letters")
    server = prepared(way)
    declares(server, "native", "ann", way.declaration)
    server.permit("ann", [])
    assert not arrives(server, way)
    assert server.broker.dead_letters.lost.counts["suspended"] == 1
    assert 'trivium_dead_letters_lost_total{reason="suspended"} 1' in metrics_text(server.broker)


def test_made_up_names_are_looked_at_as_when_they_were_declared() -> None:
    server = make_server()
    server.permit("ann", [(CONFIGURE, "amq.gen-"), (READ, "amq.gen-"), (WRITE, "y")])
    arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": "y"}
    found = server.native("ann").ask(frames.DECLARE, kind="queue", name="", arguments=arguments)
    server.permit("ann", [(READ, "amq.gen-"), (WRITE, "y")])
    declares(server, "native", "root", TO_SINK | {"name": "q"})
    publishes(server, "native", "", found["name"])
    server.advance(1)
    assert len(drain(server.vhost.queues["q"])) == 1


# Policies

DEAD_LETTERS = {"dead-letter-exchange": "y", "message-ttl": 0}


def policy_server() -> Server:
    """Dan sets a policy for the dead letters of ``n`` and the alternate exchange of ``a``."""
    users = {"root": UserConfig(password="p", permissions=EVERYTHING)}
    server = Server(config=Config(users=users))
    admin = server.administrator()
    admin.ask(frames.MANAGE_USERS, action="add", name="dan", password=b"p", tags=["policymaker"])
    server.broker.authentication.granted.set("user", "dan", grants_of(EVERYTHING, {}, [], []))
    declares(
        server,
        "native",
        "root",
        *[{"kind": "exchange", "name": name, "arguments": {}} for name in "ay"],
        *[{"kind": "queue", "name": name, "arguments": {}} for name in ("n", "sink")],
        TO_SINK,
    )
    dan = server.native("dan")
    for name, pattern, definition in (
        ("p", "^n$", DEAD_LETTERS),
        ("o", "^a$", {"alternate-exchange": "y"}),
    ):
        dan.ask(frames.SET_POLICY, name=name, pattern=pattern, definition=definition)
    return server


def led_by_policies(server: Server) -> list[int]:
    """How many dead letters, and how many messages without a way, come out in ``sink``."""
    counts = []
    for exchange, key in (("", "n"), ("a", "any")):
        publishes(server, "amqp", exchange, key)
        server.advance(1)
        server.settle()
        counts.append(len(drain(server.vhost.queues["sink"])))
    return counts


def test_a_policy_names_exchanges_while_who_set_it_may_set_policies() -> None:
    server = policy_server()
    admin = server.administrator()
    assert led_by_policies(server) == [1, 1]
    admin.ask(frames.MANAGE_USERS, action="tags", name="dan", tags=["monitoring"])
    server.settle()
    assert led_by_policies(server) == [0, 0]
    assert len(server.vhost.suspensions) == 2
    # What else it says holds.
    assert server.vhost.queues["n"].settings.message_ttl == 0
    admin.ask(frames.MANAGE_USERS, action="tags", name="dan", tags=["administrator"])
    server.settle()
    assert led_by_policies(server) == [1, 1]
    assert len(server.vhost.suspensions) == 0


def test_a_policy_is_that_of_who_sets_it_last() -> None:
    server = policy_server()
    admin = server.administrator()
    admin.ask(frames.MANAGE_USERS, action="tags", name="dan", tags=[])
    server.settle()
    admin.ask(frames.SET_POLICY, name="p", pattern="^n$", definition=DEAD_LETTERS)
    server.settle()
    assert led_by_policies(server) == [1, 0]
    assert len(server.vhost.suspensions) == 1


def test_a_dead_letter_exchange_of_an_argument_goes_before_a_policy_that_is_suspended() -> None:
    server = policy_server()
    arguments = {"x-dead-letter-exchange": "y"}
    declares(server, "native", "root", {"kind": "queue", "name": "n2", "arguments": arguments})
    dan = server.native("dan")
    dan.ask(frames.SET_POLICY, name="q", pattern="^n2$", definition=DEAD_LETTERS)
    server.administrator().ask(frames.MANAGE_USERS, action="tags", name="dan", tags=[])
    server.settle()
    publishes(server, "amqp", "", "n2")
    server.advance(1)
    assert len(drain(server.vhost.queues["sink"])) == 1


def test_a_policy_that_was_set_with_a_tokens_tags_has_those() -> None:
    server = policy_server()
    declarers = server.broker.authentication.declarers
    shown = declarers.of_policy(Identity("eve", frozenset({"policymaker"})), "/")
    found = declarers.restored(shown.row, "/")
    assert found is not None
    assert found.may_set_policies()
    key = Identity("dan", frozenset({"policymaker"}), scopes=("tag:policymaker",), is_narrowed=True)
    other = Identity("dan", frozenset(), scopes=("tag:other",), is_narrowed=True)
    assert declarers.of_policy(key, "/").may_set_policies()
    assert not declarers.of_policy(other, "/").may_set_policies()
    server.broker.users.set_tags("dan", [])
    assert not declarers.of_policy(key, "/").may_set_policies()


def test_a_policy_of_the_configuration_is_the_brokers() -> None:
    users = {"root": UserConfig(password="p", permissions=EVERYTHING)}
    host = Host()
    server = Server(config=Config(users=users), host=host)
    vhost = server.vhost
    nobody = server.broker.authentication.declarers.nobody
    vhost.set_policy(Policy("p", "^n$", DEAD_LETTERS, "queues", 0, nobody))
    server.settle()
    server.crash()
    from trivium.config import PolicyConfig

    given = PolicyConfig(pattern="^n$", definition=DEAD_LETTERS, apply_to="queues")
    again = Server(config=Config(users=users, policies={"p": given}), host=host)
    policy = again.vhost.policies.get("p")
    assert policy is not None
    assert policy.declarer is None
    assert policy.passes_on


# What is stored


def on_disk(host: Host) -> Server:
    users = {"root": UserConfig(password="p", permissions=EVERYTHING)}
    return Server(config=Config(users=users), host=host)


def restarted(server: Server) -> Server:
    server.sync()
    return server.crash()


def with_dan(way: Way, host: Host) -> Server:
    """Dan, whom commands have made, declares it, on disk."""
    server = on_disk(host)
    for name in ("x", "y"):
        server.native("root").send(frames.DECLARE, 5, {"kind": "exchange", "name": name})
    for kind, name in (("queue", "sink"), ("stream", "s")):
        server.native("root").send(frames.DECLARE, 5, {"kind": kind, "name": name})
    for fields in way.rest:
        server.native("root").send(frames.BIND, 5, fields)
    admin = server.administrator()
    order = {"action": "add", "name": "dan", "password": b"p", "tags": ["policymaker"]}
    admin.send(frames.MANAGE_USERS, 5, order)
    grant(server, way.needs)
    client = server.native("dan")
    request = frames.BIND if "pattern" in way.declaration else frames.DECLARE
    client.send(request, 5, way.declaration)
    server.sync()
    assert [kind for kind, _, _ in client.take()] == [frames.OK]
    return server


def grant(server: Server, needs: list[Need]) -> None:
    """Grant dan what names it needs, by a command."""
    names = {
        kind: "|".join(f"^{name}$" for each, name in needs if each == kind)
        for kind in (CONFIGURE, WRITE, READ)
    }
    names[CONFIGURE] = names[CONFIGURE] or "^entry$"
    server.broker.authentication.granted.set("user", "dan", grants_of({"/": names}, {}, [], []))
    server.sync()


def comes_out(server: Server, way: Way) -> bool:
    before = server.vhost.streams["s"].published
    body = native.publish(native.entry(key=way.key.encode(), exchange=way.exchange.encode()))
    server.native("root").send(frames.PUBLISH, 7, body)
    server.sync()
    server.advance(1)
    server.sync()
    if way.is_stream:
        return server.vhost.streams["s"].published > before
    return bool(drain(server.vhost.queues["sink"]))


@pytest.mark.parametrize("way", ways())
def test_who_declared_it_is_known_after_a_crash(way: Way) -> None:
    server = restarted(with_dan(way, Host()))
    assert comes_out(server, way)
    grant(server, [])
    assert not comes_out(server, way)
    server = restarted(server)
    assert not comes_out(server, way)
    assert len(server.vhost.suspensions) == 1
    grant(server, way.needs)
    assert comes_out(server, way)


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_whoever_took_it_over_is_known_after_a_crash(way: Way) -> None:
    server = with_dan(way, Host())
    request = frames.BIND if "pattern" in way.declaration else frames.DECLARE
    server.native("root").send(request, 5, way.declaration)
    server = restarted(server)
    grant(server, [])
    assert comes_out(server, way)


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_those_who_declared_it_beside_a_deleted_user_have_it_alone(way: Way) -> None:
    server = with_dan(way, Host())
    request = frames.BIND if "pattern" in way.declaration else frames.DECLARE
    server.native("root").send(request, 5, way.declaration)
    delete(server)
    server = restarted(server)
    assert comes_out(server, way)
    (item,) = declared(server, way)
    declarer = suspensions.declarer_of(item)
    assert declarer is not None
    assert declarer.name == "root"


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_what_was_in_force_by_a_deleted_user_alone_is_the_brokers(way: Way) -> None:
    server = with_dan(way, Host())
    (item,) = declared(server, way)
    declarers = server.broker.authentication.declarers
    dan = suspensions.declarer_of(item)
    assert dan is not None
    suspensions.give(server.vhost, item, declarers.joint([dan, stranger(server)], "/"))
    delete(server)
    assert comes_out(server, way)
    assert not declared(server, way)


def declared(server: Server, way: Way) -> list[suspensions.Item]:
    """What was declared as ``way`` has it and is not the broker's."""
    is_binding = "pattern" in way.declaration
    return [
        item
        for item in suspensions.declared(server.vhost)
        if item is not None and isinstance(item, tuple) is is_binding
    ]


def stranger(server: Server) -> Declarer:
    """Somebody who may nothing."""
    return server.broker.authentication.declarers.of(Identity("stranger"), "/")


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_a_user_of_the_table_inherits_nothing_of_one_of_the_configuration(way: Way) -> None:
    host = Host()
    server = with_dan(way, host)
    # What passes on is of a user of the configuration, who is then taken out of it.
    delete(server)
    assert not declared(server, way)
    before = server.broker.authentication.declarers.of(Identity("dan"), "/")
    request = frames.BIND if "pattern" in way.declaration else frames.DECLARE
    server.native("root").send(request, 5, way.declaration)
    server.sync()
    (item,) = declared(server, way)
    suspensions.give(server.vhost, item, before)
    server = restarted(server)
    assert not comes_out(server, way)
    # Whoever is authenticated elsewhere has the name by what is granted to it.
    server.broker.permissions.set_user("dan", grants_of(EVERYTHING, {}, [], []))
    server.broker.logins.permissions_changed("dan")
    assert comes_out(server, way)
    order = {"action": "add", "name": "dan", "password": b"p", "tags": []}
    server.administrator().send(frames.MANAGE_USERS, 5, order)
    grant(server, way.needs)
    assert not comes_out(server, way)
    assert len(server.vhost.suspensions) == 1
    server = restarted(server)
    assert not comes_out(server, way)
    server.native("dan").send(request, 5, way.declaration)
    server.sync()
    assert comes_out(server, way)


@pytest.mark.parametrize("way", ways())
def test_what_a_deleted_user_has_in_force_goes_on(way: Way) -> None:
    server = with_dan(way, Host())
    delete(server)
    assert comes_out(server, way)
    server = restarted(server)
    assert comes_out(server, way)
    assert len(server.vhost.suspensions) == 0
    assert server.broker.permissions.user("dan") is None


@pytest.mark.parametrize("way", ways())
def test_what_a_deleted_user_has_suspended_stays_so_until_it_is_declared_again(way: Way) -> None:
    server = with_dan(way, Host())
    grant(server, [])
    delete(server)
    assert not comes_out(server, way)
    # Another user of the name has none of it.
    admin = server.administrator()
    order = {"action": "add", "name": "dan", "password": b"p", "tags": []}
    admin.send(frames.MANAGE_USERS, 5, order)
    grant(server, way.needs)
    assert not comes_out(server, way)
    server = restarted(server)
    assert not comes_out(server, way)
    assert len(server.vhost.suspensions) == 1
    request = frames.BIND if "pattern" in way.declaration else frames.DECLARE
    server.native("dan").send(request, 5, way.declaration)
    server.sync()
    assert comes_out(server, way)
    assert len(server.vhost.suspensions) == 0


def delete(server: Server) -> None:
    admin = server.administrator()
    admin.send(frames.MANAGE_USERS, 9, {"action": "delete", "name": "dan"})
    server.sync()
    assert not server.broker.users.leaving


def test_a_deletion_that_a_crash_cuts_off_keeps_what_is_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its permissions stay as long as something is yet to be looked at."""
    way = next(way for way in WAYS if way.name == "fanout to queue")
    server = with_dan(way, Host())
    server.native("root").send(frames.DECLARE, 5, {"kind": "queue", "name": "other"})
    grant(server, [*way.needs, (WRITE, "other")])
    server.native("dan").send(frames.BIND, 5, bound("amq.fanout", "queue", "other"))
    server.sync()
    monkeypatch.setattr(user_deletion, "MAX_PER_TURN", 1)
    admin = server.administrator()
    admin.send(frames.MANAGE_USERS, 9, {"action": "delete", "name": "dan"})
    server.host.step()
    assert server.broker.users.leaving
    server = server.crash()
    assert server.broker.users.leaving
    server.advance(1)
    server.sync()
    assert not server.broker.users.leaving
    exchange = server.vhost.exchange("amq.fanout")
    assert [found.name for found in server.vhost.route(exchange, b"").destinations] == [
        "sink",
        "other",
    ]
    assert server.broker.permissions.user("dan") is None


def import_by_dan(server: Server, way: Way) -> None:
    """It is brought by dan, as an administrator who may do nothing else."""
    user = server.broker.users.find("dan")
    assert user is not None
    declarers = server.broker.authentication.declarers
    for item in declared(server, way):
        suspensions.give(server.vhost, item, declarers.of_import(user.identity, "/"))
    grant(server, [])


@pytest.mark.parametrize("way", ways())
def test_what_a_deleted_administrator_imported_goes_on(way: Way) -> None:
    server = with_dan(way, Host())
    order = {"action": "tags", "name": "dan", "tags": [ADMINISTRATOR]}
    server.administrator().send(frames.MANAGE_USERS, 5, order)
    import_by_dan(server, way)
    assert comes_out(server, way)
    delete(server)
    assert not declared(server, way)
    assert comes_out(server, way)
    assert len(server.vhost.suspensions) == 0
    server = restarted(server)
    assert comes_out(server, way)


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_what_a_deleted_user_imported_as_a_former_administrator_stays_suspended(way: Way) -> None:
    server = with_dan(way, Host())
    import_by_dan(server, way)
    assert not comes_out(server, way)
    delete(server)
    order = {"action": "add", "name": "dan", "password": b"p", "tags": [ADMINISTRATOR]}
    server.administrator().send(frames.MANAGE_USERS, 5, order)
    server.sync()
    assert not comes_out(server, way)
    server = restarted(server)
    assert not comes_out(server, way)


@pytest.mark.parametrize("way", ways("fanout to queue", "dead letters", "alternate"))
def test_a_deletion_that_a_crash_cuts_off_keeps_what_an_administrator_imported(
    monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    server = with_dan(way, Host())
    order = {"action": "tags", "name": "dan", "tags": [ADMINISTRATOR]}
    server.administrator().send(frames.MANAGE_USERS, 5, order)
    import_by_dan(server, way)
    admin = server.administrator()
    monkeypatch.setattr(user_deletion.UserDeletion, "begin", lambda self: None)
    admin.send(frames.MANAGE_USERS, 9, {"action": "delete", "name": "dan"})
    monkeypatch.undo()
    server.sync()
    assert declared(server, way)
    assert comes_out(server, way)
    server = restarted(server)
    server.advance(1)
    server.sync()
    assert not server.broker.users.leaving
    assert not declared(server, way)
    assert comes_out(server, way)
    assert len(server.vhost.suspensions) == 0


def test_a_policy_of_a_deleted_user_goes_on() -> None:
    server = policy_server()
    delete(server)
    assert led_by_policies(server) == [1, 1]
    server = policy_server()
    server.administrator().ask(frames.MANAGE_USERS, action="tags", name="dan", tags=[])
    delete(server)
    server.sync()
    assert led_by_policies(server) == [0, 0]
    assert len(server.vhost.suspensions) == 2


# What is told


def test_what_is_suspended_is_told_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    told: list[tuple[str, dict[str, object]]] = []
    way = next(way for way in WAYS if way.name == "dead letters")
    server = prepared(way)
    needs = [*way.needs, (WRITE, "q"), (READ, "amq.fanout"), (CONFIGURE, "e"), (READ, "e")]
    server.permit("ann", needs)
    alternate = {"kind": "exchange", "name": "e", "arguments": {"alternate-exchange": "y"}}
    declares(
        server, "native", "ann", way.declaration, alternate, bound("amq.fanout", "queue", "q", b"k")
    )
    server.broker.events.listen(lambda event, about: told.append((event, about)))
    caplog.clear()
    server.permit("ann", [])
    events = {event for event, _ in told}
    expected = {"binding.suspended", "queue.dead-letters.suspended", "exchange.alternate.suspended"}
    assert events == expected
    assert all(event.startswith(KINDS["topology"]) for event in events)
    assert {about["declarer"] for _, about in told} == {"ann"}
    assert "trivium_suspended_declarations 3" in metrics_text(server.broker)
    ((line),) = [record.getMessage() for record in caplog.records]
    assert line.startswith("vhost '/': 3 declarations are suspended")
    assert "binding 'amq.fanout' -> 'q' by 'k'" in line
    told.clear()
    server.permit("ann", needs)
    assert {event for event, _ in told} == {
        event.replace("suspended", "resumed") for event in expected
    }
    assert "trivium_suspended_declarations 0" in metrics_text(server.broker)


def test_what_is_gone_is_not_suspended() -> None:
    way = next(way for way in WAYS if way.name == "alternate")
    server = prepared(way)
    server.permit("ann", [*way.needs, (WRITE, "sink"), (READ, "amq.fanout")])
    queue = {"kind": "queue", "name": "n", "arguments": {"x-dead-letter-exchange": "y"}}
    fanout = bound("amq.fanout", "queue", "sink")
    declares(server, "native", "ann", way.declaration, queue, fanout)
    server.permit("ann", [])
    assert len(server.vhost.suspensions) == 3
    root = server.native("root")
    root.ask(frames.UNBIND, **fanout)
    root.ask(frames.DELETE, kind="queue", name="n")
    assert len(server.vhost.suspensions) == 1
    root.ask(frames.DELETE, kind="exchange", name="n")
    assert len(server.vhost.suspensions) == 0


@pytest.mark.pure
@pytest.mark.parametrize("most", ["MAX_PER_TURN", "LOOK_EVERY"])
def test_very_many_are_looked_at_a_part_in_each_turn(
    monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """After as many as may be, or where the turn is long by then."""
    monkeypatch.setattr(suspensions, most, 4)
    server = make_server()
    monkeypatch.setattr(type(server.broker), "is_turn_long", most == "LOOK_EVERY")
    server.permit("ann", [(WRITE, "q"), (READ, "amq.direct")])
    keys = [str(number).encode() for number in range(20)]
    declares(server, "native", "ann", *[bound("amq.direct", "queue", "q", key) for key in keys])
    server.broker.permissions.set_user("ann", None)
    server.broker.logins.permissions_changed("ann")
    server.broker.end_turn()
    # Whatever has been looked at by then, no route leads there any more.
    assert len(server.vhost.suspensions) <= 4
    exchange = server.vhost.exchange("amq.direct")
    assert not any(server.vhost.route(exchange, key).destinations for key in keys)
    server.advance(1)
    assert len(server.vhost.suspensions) == 20


@pytest.mark.pure
def test_a_change_during_a_walk_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspensions, "MAX_PER_TURN", 4)
    server = make_server()
    needs: list[Need] = [(WRITE, "q"), (READ, "amq.direct")]
    server.permit("ann", needs)
    for number in range(20):
        declares(server, "native", "ann", bound("amq.direct", "queue", "q", str(number).encode()))
    server.broker.permissions.set_user("ann", None)
    server.broker.logins.permissions_changed("ann")
    server.broker.end_turn()
    server.broker.end_turn()
    server.permit("ann", needs)
    server.advance(1)
    assert len(server.vhost.suspensions) == 0


# Routes

PATTERNS = ["", ".*", "^q", "^(q1|amq.direct)$", "amq", "^(q2|e|amq.topic)$"]
USERS = ["ann", "bob"]
CHANGES = st.one_of(
    st.tuples(
        st.just("permit"),
        st.sampled_from(USERS),
        st.sampled_from(PATTERNS),
        st.sampled_from(PATTERNS),
        st.sampled_from(["", "^a", ".*"]),
    ),
    st.tuples(
        st.just("bind"),
        st.sampled_from(USERS),
        st.sampled_from(["amq.direct", "amq.topic", "amq.fanout", "e"]),
        st.sampled_from(["q1", "q2", "e"]),
        st.sampled_from([b"a", b"a.#", b"b"]),
    ),
    st.tuples(st.just("ask")),
)


@given(st.lists(CHANGES, max_size=30))
def test_a_route_that_is_remembered_is_that_which_is_found_anew(
    changes: list[tuple[Any, ...]],
) -> None:
    server = Server()
    broker, vhost = server.broker, server.vhost
    vhost.declare_exchange("e", "topic", arguments={"alternate-exchange": "amq.fanout"})
    for name in ("q1", "q2"):
        vhost.declare_queue(name)
    for user in USERS:
        broker.users.add(user, hash_password(b"x"))
    declarers = broker.authentication.declarers
    bound_by: dict[tuple[str, str, bytes], set[str]] = {}

    def check() -> None:
        for exchange in vhost.exchanges.values():
            for key in (b"a", b"a.b", b"b"):
                found = vhost.route(exchange, key)
                # What was decided is forgotten.
                broker.permissions.generation += 1
                anew = Routes(vhost).of_key(exchange, key)
                assert found.destinations == anew.destinations
        for (source, name, key), users in bound_by.items():
            binding = Binding(vhost.destination(name, name == "e"), key)
            kept = vhost.exchange(source).find(binding)
            assert kept is not None
            guard = kept.guard
            assert isinstance(guard, Declarer)
            # It is in force while any of them might declare it again.
            mays = [
                declarers.of(Identity(user), "/").admits(vhost.exchange(source), kept, b"")
                for user in users
            ]
            assert guard.admits(vhost.exchange(source), kept, b"") is any(mays)

    for kind, *values in changes:
        if kind == "permit":
            user, write, read, topics = values
            broker.authentication.granted.set(
                "user",
                user,
                grants_of(
                    {"/": {"configure": "", "write": write, "read": read}},
                    {"/": {"amq.topic": {"write": topics, "read": topics}}},
                    [],
                    [],
                ),
            )
        elif kind == "bind":
            user, source, name, key = values
            destination = vhost.destination(name, name == "e")
            guard = declarers.of(Identity(user), "/")
            vhost.bind(vhost.exchange(source), Binding(destination, key, guard=guard))
            bound_by.setdefault((source, name, key), set()).add(user)
        check()


@pytest.mark.parametrize("is_in_force", [True, False])
def test_roles_and_acl_lines_count_too(is_in_force: bool) -> None:
    server = make_server()
    server.permit("ann", [(WRITE, "q"), *READ_TOPIC])
    declares(server, "native", "ann", bound("amq.topic", "queue", "q", b"a.b"))
    grants = grants_of({"/": {"write": "^q$"}}, {}, ["topic read a/#"], [])
    if not is_in_force:
        grants = grants_of({}, {}, ["topic deny a/+"], ["all"])
        server.broker.permissions.set_role("all", grants_of(EVERYTHING, {}, [], []))
    server.broker.permissions.set_user("ann", grants)
    server.broker.logins.permissions_changed("ann")
    server.settle()
    publishes(server, "mqtt", "amq.topic", "a.b")
    assert bool(drain(server.vhost.queues["q"])) is is_in_force


def test_clients_without_credentials_declare_by_what_they_may_do_now() -> None:
    anonymous = grants_of(EVERYTHING, {}, [], [])
    server = Server(config=Config(auth=AuthConfig(anonymous="always")))
    server.broker.permissions.set_anonymous(anonymous)
    vhost = server.vhost
    vhost.declare_queue("q")
    declarer = server.broker.authentication.declarers.of(Identity("", is_anonymous=True), "/")
    found = server.broker.authentication.declarers.restored(declarer.row, "/")
    vhost.bind(vhost.exchange("amq.fanout"), Binding(vhost.queues["q"], b"", guard=found))
    assert vhost.route(vhost.exchange("amq.fanout"), b"").destinations
    server.broker.permissions.set_anonymous(grants_of({}, {}, [], []))
    server.broker.logins.permissions_changed(None)
    assert not vhost.route(vhost.exchange("amq.fanout"), b"").destinations


def test_a_filter_that_is_subscribed_to_again_is_narrowed_by_a_renewal() -> None:
    """The binding that is there is the one that is narrowed."""
    server = make_server("/", ScopedServer)
    assert isinstance(server, ScopedServer)
    server.broker.permissions.set_user("ann", grants_of(EVERYTHING, {}, [], []))
    expires_ms = server.broker.now_ms + 60_000
    add = server.broker.authentication.api_keys.add
    shown = add("ann", ["read:*/*"], expires_ms)[1]
    properties = b"\x15" + mqtt.text("API-KEY") + b"\x16"
    client = mqtt.Client(server).open("c", 5, properties=properties + mqtt.text(shown))
    for _ in range(2):
        client.subscribe("#", 0)
    less = add("ann", ["read:*/amq.topic/other"], expires_ms)[1]
    data = b"\x19" + mqtt.block(properties + mqtt.text(less))
    client.feed(mqtt.packet(0xF0, data))
    assert client.take_one()[0] == 0xF0
    server.mqtt("root", "sender").feed(mqtt.publish("a/b", b"m", 0, 0, 5))
    assert client.take_bytes() == b""
