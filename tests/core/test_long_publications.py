"""Messages over HTTP that make very many deliveries: several turns, and others are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.native import Server, entry, frame
from tests.support.native import publish as native
from tests.support.server import ShortTurns
from tests.support.simulated import Host
from tests.support.storages import HeldStorage
from trivium.common.quotas import USER
from trivium.listen import ListenerConfig
from trivium.management.management import Management
from trivium.management.rest import publications
from trivium.management.rest.publications import DELIVERY_BYTES
from trivium.observability.api import ApiAnswer, ApiRequest
from trivium.queues.queue import Queue
from trivium.routing.exchanges import Binding
from trivium.runtime.long_requests import STEP
from trivium.security.identity import Identity
from trivium.security.permissions import grants_of
from trivium.storage.base import Storage
from trivium_native.wire import frames

#: queues of the exchange, messages that fit in a turn, and messages of a request
QUEUES = 4
FITS = 4
COUNT = 10
EVERYTHING = {"*": {"configure": ".*", "write": ".*", "read": ".*"}}


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "STEP", QUEUES * FITS)


class Asked:
    """A request and its answer."""

    def __init__(self) -> None:
        self.answers: list[ApiAnswer] = []
        self.has_left = False

    @property
    def status(self) -> int:
        """0 before it is answered."""
        assert len(self.answers) <= 1
        return self.answers[0].status if self.answers else 0

    @property
    def body(self) -> Any:
        return self.answers[0].body


class Site:
    """A broker whose turns are long from their begin on, with an exchange that leads to several
    queues, and its HTTP API."""

    def __init__(
        self, storage: Storage | None = None, host: Host | None = None, name: str = "/"
    ) -> None:
        self.server = Server(storage, host=host)
        self.name = name
        vhost = self.server.broker.virtual_hosts.declare(name)
        vhost.declare_exchange("fan", "fanout", durable=True)
        for number in range(QUEUES):
            queue = vhost.declare_queue(f"q{number}", durable=True)
            vhost.bind(vhost.exchange("fan"), Binding(queue, b""))
        self.server.sync()
        self.begin()

    def begin(self) -> None:
        self.vhost = self.server.broker.vhosts[self.name]
        self.queue = self.vhost.queue("q0")
        self.management = Management(self.server.broker, lambda work: work())
        for user in ("ann", "bob"):
            grants = grants_of(EVERYTHING, {}, [], [])
            self.server.broker.permissions.set_user(user, grants)
        self.driver = ShortTurns()
        self.server.broker.driver = self.driver

    def crash(self) -> None:
        self.server = self.server.crash()
        self.begin()

    def ask(
        self,
        user: str = "ann",
        key: str = "",
        messages: list[dict[str, Any]] | None = None,
        fingerprint: bytes = bytes(16),
    ) -> Asked:
        """The first turn publishes what fits."""
        asked = Asked()
        given = messages or [{"payload": str(number)} for number in range(COUNT)]
        request = ApiRequest(
            method="POST",
            path=("v1", "vhosts", self.name, "exchanges", "fan", "messages"),
            query={},
            body={"messages": given},
            identity=Identity(user),
            idempotency_key=key,
            fingerprint=fingerprint,
            address="192.0.2.1",
            listener=ListenerConfig(protocol="http", address="127.0.0.1:0", name="http"),
            has_left=lambda: asked.has_left,
        )
        self.management.ask(request, asked.answers.append)
        self.server.settle()
        return asked

    def turn(self, count: int = 1) -> None:
        """So many further turns, in each of which one request goes on."""
        for _ in range(count):
            assert len(self.driver.soon) + len(self.driver.next) == 1
            soon, self.driver.soon = self.driver.soon, []
            going_on, self.driver.next = self.driver.next, []
            for work in soon:
                work()
            for connection in going_on:
                connection.next_turn()
            self.server.settle()

    @property
    def is_busy(self) -> bool:
        return bool(self.driver.soon or self.driver.next)

    def finish(self) -> None:
        while self.is_busy:
            self.turn()

    def queued(self, queue: Queue | None = None) -> list[str]:
        """What a queue has, that of the first."""
        queue = queue or self.queue
        found = [queue.get() for _ in range(len(queue))]
        return [entry.message.payload.decode() for entry in found if entry is not None]


NUMBERS = [str(number) for number in range(COUNT)]
ACCEPTED = {"outcomes": ["accepted"] * COUNT, "repeated": False}


def test_others_are_served_in_between() -> None:
    site = Site()
    other = site.server.open()
    asked = site.ask()
    lengths = [len(site.queue)]
    while site.is_busy:
        assert other.send(frames.PING, 1, b"") == [(frames.PONG, 1, b"")]
        assert asked.status == 0
        site.turn()
        lengths.append(len(site.queue))
    assert lengths == [FITS, 2 * FITS, COUNT]
    assert (asked.status, asked.body) == (202, ACCEPTED)
    assert site.queued() == site.queued(site.vhost.queue(f"q{QUEUES - 1}")) == NUMBERS
    assert site.server.broker.http.messages_received == COUNT


def test_what_fits_in_a_turn_is_answered_in_it() -> None:
    site = Site()
    asked = site.ask(messages=[{"payload": "x"}] * FITS)
    assert not site.is_busy
    assert asked.status == 202


def test_payloads_take_turns_by_their_bytes() -> None:
    site = Site()
    for queue in list(site.vhost.queues.values())[1:]:
        site.vhost.delete_queue(queue)
    size = DELIVERY_BYTES * QUEUES * FITS // 2
    asked = site.ask(messages=[{"payload": "x" * size}] * 5)
    lengths = [len(site.queue)]
    while site.is_busy:
        site.turn()
        lengths.append(len(site.queue))
    assert lengths == [2, 4, 5]
    assert asked.status == 202


def test_one_step_is_all_that_a_request_has_before_its_turn_where_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    site.ask()
    monkeypatch.setattr(ShortTurns, "is_turn_long", lambda driver: False)
    asked = site.ask("bob")
    assert len(site.queue) == 2 * FITS
    site.finish()
    assert asked.status == 202
    assert site.ask().status == 202


def test_users_take_turns_and_so_do_the_requests_of_each() -> None:
    site = Site()
    mine, other = site.ask(), site.ask()
    theirs = site.ask("bob")
    order = []
    while site.is_busy:
        before = len(site.queue), [each.status for each in (mine, other, theirs)]
        site.turn()
        assert len(site.queue) > before[0]
        order.append([each.status for each in (mine, other, theirs)])
    assert order == [[0, 0, 0]] * 3 + [[0, 0, 202], [202, 0, 202], [202, 202, 202]]


def test_other_roads_stand_in_the_same_line() -> None:
    site = Site()
    client = site.server.open()
    client.connection.identity = Identity("ann")
    asked = site.ask()
    count = 2 * STEP // QUEUES + 1
    client.feed(frame(frames.PUBLISH, 9, native(*[entry(exchange=b"fan")] * count)))
    order = []
    while site.is_busy:
        order.append(bool(site.driver.soon))
        site.turn()
    assert order == [True, False, True, False]
    assert asked.status == 202
    assert [found[:2] for found in client.take()] == [(frames.CONFIRM, 9)]


def test_the_answer_waits_for_the_last_write_batch() -> None:
    site = Site(HeldStorage())
    asked = site.ask()
    site.turn()
    site.server.sync()
    assert asked.status == 0
    site.finish()
    assert asked.status == 0
    site.server.sync()
    assert (asked.status, asked.body) == (202, ACCEPTED)


def test_of_a_client_that_has_left_the_rest_is_given_up() -> None:
    site = Site()
    asked, other = site.ask(), site.ask("bob")
    asked.has_left = True
    site.finish()
    assert other.status == 202
    assert len(site.queue) == FITS + COUNT


def test_with_a_key_a_request_goes_on_where_its_client_had_left() -> None:
    site = Site()
    asked = site.ask(key="k")
    asked.has_left = True
    site.finish()
    assert len(site.queue) == FITS
    again = site.ask(key="k")
    site.finish()
    assert (again.status, again.body) == (202, ACCEPTED)
    assert site.ask(key="k").body == {**ACCEPTED, "repeated": True}
    assert site.queued() == NUMBERS


def test_with_a_key_a_request_goes_on_where_the_broker_was_gone() -> None:
    site = Site(host=Host())
    site.ask(key="k")
    site.turn()
    site.server.sync()
    site.crash()
    assert len(site.queue) == 2 * FITS
    again = site.ask(key="k")
    site.finish()
    site.server.sync()
    assert (again.status, again.body) == (202, ACCEPTED)
    assert site.queued() == NUMBERS


def test_two_requests_with_one_key_are_done_once() -> None:
    site = Site()
    asked = [site.ask(key="k") for _ in range(3)]
    site.finish()
    assert [each.status for each in asked] == [202] * 3
    assert [each.body["outcomes"] for each in asked] == [["accepted"] * COUNT] * 3
    assert site.queued() == NUMBERS


def test_a_key_that_is_under_way_is_not_for_another_request() -> None:
    site = Site()
    asked = site.ask(key="k")
    other = site.ask(key="k", messages=[{"payload": "y"}], fingerprint=b"y" * 16)
    assert other.status == 422
    site.finish()
    assert asked.status == 202
    assert site.queued() == NUMBERS


def test_what_is_rejected_is_named_over_all_turns_and_may_be_asked_again() -> None:
    site = Site()
    arguments: Any = {"x-max-length": COUNT - 1, "x-overflow": "reject-publish"}
    full = site.vhost.declare_queue("full", arguments=arguments)
    site.vhost.bind(site.vhost.exchange("fan"), Binding(full, b""))
    asked = site.ask(key="k")
    site.finish()
    assert asked.status == 202
    assert asked.body["outcomes"] == ["accepted"] * (COUNT - 1) + ["rejected"]
    full.purge()
    again = site.ask(key="k")
    site.finish()
    assert again.body == {**asked.body, "repeated": False}
    full.purge()
    # Another one may have the key as well.
    assert site.ask(key="k", messages=[{"key": "z"}], fingerprint=b"y" * 16).status == 202


def test_what_is_wrong_with_any_message_is_found_before_any_is_published() -> None:
    site = Site()
    for wrong in ({"headers": {"x-delivery": "sometimes"}}, {"key": "a." * 200}):
        asked = site.ask(messages=[{"payload": "x"}] * COUNT + [wrong])
        assert asked.status == 409
    assert len(site.queue) == 0


def delete_exchange(site: Site) -> None:
    site.vhost.delete_exchange("fan")


def take_rights(site: Site) -> None:
    site.server.broker.permissions.set_user("ann", grants_of({"*": {"read": ".*"}}, {}, [], []))


def delete_vhost(site: Site) -> None:
    site.server.broker.virtual_hosts.delete(site.name, lambda: None)


def stop(site: Site) -> None:
    site.server.broker.is_stopping = True


@pytest.mark.parametrize(
    ("change", "status"),
    [(delete_exchange, 404), (take_rights, 403), (delete_vhost, 404), (stop, 503)],
)
def test_what_happens_in_between_holds_for_the_rest(
    change: Callable[[Site], None], status: int
) -> None:
    site = Site(name="v")
    asked = site.ask()
    change(site)
    site.turn()
    assert asked.status == status
    assert not site.is_busy
    assert len(site.queue) == FITS


def test_the_rest_follows_the_topology() -> None:
    site = Site()
    asked = site.ask()
    further = site.vhost.declare_queue("further")
    site.vhost.bind(site.vhost.exchange("fan"), Binding(further, b""))
    site.finish()
    assert asked.status == 202
    assert site.queued(further) == NUMBERS[FITS:]


def test_who_waits_to_publish_does_not_in_a_virtual_host_that_is_deleted() -> None:
    site = Site(name="v")
    quotas = site.server.broker.quotas
    quotas.set_limits(USER, "ann", {"publish-messages-per-second": 1})
    assert site.ask(messages=[{}] * 3).status == 202
    asked = site.ask(messages=[{}])
    assert asked.status == 0
    delete_vhost(site)
    site.server.advance(5)
    assert asked.status == 404
    assert site.server.broker.http.messages_received == 3
