"""Publisher confirms (class 85) and transactions (class 90) on storage that syncs when told to."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from tests.support.amqp import (
    Client,
    Server,
    assert_channel_closed,
    assert_connection_closed,
    bodies,
    names,
    publish_frames,
    tags,
)
from tests.support.steps import steps
from tests.support.storages import HeldStorage
from trivium.routing.exchanges import MAX_DELIVERIES, Binding
from trivium.storage.base import DurabilityWaiter


class SlowStorage(HeldStorage):
    """Write batches begin when the test says so, and the times that somebody waits are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.write_batch = 0
        self.registrations = 0

    def wait(self, waiter: DurabilityWaiter) -> int:
        self.registrations += 1
        return super().wait(waiter)

    def commit(self) -> None:
        pass

    def complete(self) -> None:
        self.sync(self.write_batch)

    def new_write_batch(self) -> None:
        """The write batch so far is with the writer; the next one begins."""
        self.write_batch += 1

    def sync(self, up_to: int) -> None:
        """Everything up to this write batch is durable."""
        self.durable = up_to
        for waiter in list(self.waiters):
            waiter.write_batch_durable(up_to)


class Setup:
    def __init__(self) -> None:
        self.storage = SlowStorage()
        self.server = Server(storage=self.storage)
        self.client = self.server.open()
        self.client.declare("disk", durable=True)
        self.client.declare("memory")
        self.storage.new_write_batch()

    def publish(self, queue: str, count: int = 1, **properties: Any) -> None:
        self.client.feed(publish_frames(queue, b"12345678", **properties) * count)

    def sync(self, up_to: int) -> None:
        self.storage.sync(up_to)
        self.server.settle()

    def acks(self) -> list[tuple[str, int, bool]]:
        """What was confirmed since the last look."""
        found = []
        for received in self.client.take():
            assert isinstance(received, Basic.Ack | Basic.Nack), received
            assert received.delivery_tag is not None
            found.append((received.name, received.delivery_tag, bool(received.multiple)))
        return found


@pytest.fixture
def setup() -> Setup:
    made = Setup()
    assert made.client.ask(Confirm.Select()).name == "Confirm.SelectOk"
    return made


def ack(tag: int, multiple: bool = False) -> tuple[str, int, bool]:
    return ("Basic.Ack", tag, multiple)


def test_confirm_select_nowait_is_not_answered(client: Client) -> None:
    assert client.call(Confirm.Select(nowait=True)) == []
    client.publish("nowhere")
    assert names(client.take()) == ["Basic.Ack"]


def test_nothing_is_confirmed_without_confirm_select(client: Client) -> None:
    client.declare("q")
    client.publish("q")
    assert client.take() == []


def test_basic_ack_bytes(setup: Setup) -> None:
    setup.publish("memory", 3)
    assert setup.client.take_bytes() == bytes.fromhex(
        "01 0001 0000000d 003c0050 0000000000000003 01 ce"
    )


@pytest.mark.parametrize(
    ("queue", "properties"),
    [("nowhere", {"delivery_mode": 2}), ("memory", {"delivery_mode": 2}), ("disk", {})],
)
def test_what_need_not_survive_is_confirmed_at_once(
    setup: Setup, queue: str, properties: dict[str, int]
) -> None:
    setup.publish(queue, **properties)
    assert setup.acks() == [ack(1)]
    setup.publish(queue, 5, **properties)
    assert setup.acks() == [ack(6, True)]


def test_persistent_message_in_a_durable_queue_waits_for_its_write_batch(setup: Setup) -> None:
    setup.publish("disk", 4, delivery_mode=2)
    assert setup.acks() == []
    setup.sync(0)
    assert setup.acks() == []
    setup.sync(1)
    assert setup.acks() == [ack(4, True)]


def test_one_ack_per_write_batch_and_one_registration(setup: Setup) -> None:
    setup.publish("disk", 100, delivery_mode=2)
    setup.publish("disk", 50, delivery_mode=2)
    assert setup.storage.registrations == 1
    setup.storage.new_write_batch()
    setup.publish("disk", 10, delivery_mode=2)
    setup.sync(1)
    assert setup.acks() == [ack(150, True)]
    setup.sync(2)
    assert setup.acks() == [ack(160, True)]


def test_several_write_batches_may_become_durable_at_once(setup: Setup) -> None:
    for _ in range(3):
        setup.publish("disk", 2, delivery_mode=2)
        setup.storage.new_write_batch()
    setup.sync(3)
    assert setup.acks() == [ack(6, True)]


def test_multiple_never_covers_what_still_waits(setup: Setup) -> None:
    setup.publish("memory", 2)
    setup.publish("disk", delivery_mode=2)
    # Most of these are a run.
    setup.publish("memory", 6)
    assert setup.acks() == [ack(2, True), *[ack(tag) for tag in range(4, 10)]]
    setup.sync(1)
    assert setup.acks() == [ack(3, True)]
    setup.publish("memory", 1)
    assert setup.acks() == [ack(10, True)]


def test_mixed_in_one_read(setup: Setup) -> None:
    one = publish_frames("memory", b"1") + publish_frames("disk", b"2", delivery_mode=2)
    setup.client.feed(one * 2)
    confirmed = setup.acks()
    assert sorted(confirmed) == [ack(1), ack(3)]
    setup.sync(1)
    assert setup.acks() == [ack(4, True)]


def test_message_for_both_kinds_of_queue_waits(setup: Setup) -> None:
    for queue in ("disk", "memory"):
        setup.client.bind(queue, "amq.fanout", "")
    setup.storage.new_write_batch()
    setup.client.publish("", exchange="amq.fanout", delivery_mode=2)
    assert setup.acks() == []
    setup.sync(2)
    assert setup.acks() == [ack(1, True)]


def test_retained_message_waits_for_its_write_batch(setup: Setup) -> None:
    setup.client.publish("a", exchange="amq.topic", headers={"x-retain": True})
    assert setup.acks() == []
    setup.sync(1)
    assert setup.acks() == [ack(1, True)]


def test_return_comes_before_the_ack(setup: Setup) -> None:
    setup.client.publish("nowhere", mandatory=True)
    assert names(setup.client.take()) == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Basic.Ack",
    ]


def test_refused_publish_is_nacked(setup: Setup) -> None:
    setup.client.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    setup.publish("full", 3)
    assert setup.acks() == [("Basic.Nack", 2, False), ("Basic.Nack", 3, False), ack(1)]


@pytest.mark.parametrize("headers", [{}, {"x-retain": True}])
@pytest.mark.parametrize("queues", [("full", "disk"), ("disk", "full")])
def test_a_publish_that_one_of_its_queues_refuses_is_nacked(
    setup: Setup, queues: tuple[str, str], headers: dict[str, bool]
) -> None:
    """Whatever the others answer, and whether it is kept as a retained message."""
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
    setup.client.declare("full", arguments=arguments)
    for queue in queues:
        setup.client.bind(queue, "amq.topic", "k")
    setup.client.publish("k", b"m", "amq.topic", delivery_mode=2, headers=headers)
    # basic.nack: tag 1, neither multiple nor requeue
    assert setup.client.take_bytes() == bytes.fromhex(
        "01 0001 0000000d 003c0078 0000000000000001 00 ce"
    )
    setup.sync(1)
    assert setup.client.take_bytes() == b""
    assert setup.client.counts("disk") == (1, 0)


def test_tags_count_per_channel(setup: Setup) -> None:
    setup.client.open_channel(2)
    setup.client.call(Confirm.Select(), channel=2)
    setup.publish("memory", 2)
    setup.client.feed(publish_frames("memory", channel=2))
    assert setup.client.take_with_channels()[-1][0] == 2
    setup.client.feed(publish_frames("memory", channel=2))
    ((channel, confirm),) = setup.client.take_with_channels()
    assert (channel, confirm.delivery_tag) == (2, 2)


def test_confirms_are_sent_before_the_channel_closes(setup: Setup) -> None:
    close = frame.marshal(Channel.Close(200, "", 0, 0), 1)
    setup.client.feed(publish_frames("memory") + close)
    assert names(setup.client.take()) == ["Basic.Ack", "Channel.CloseOk"]


def test_confirms_are_sent_before_the_connection_closes(setup: Setup) -> None:
    setup.client.call(Confirm.Select())
    close = frame.marshal(Connection.Close(200, "", 0, 0), 0)
    setup.client.feed(publish_frames("memory", b"x") + close)
    setup.server.end_turn()
    assert names(setup.client.take()) == ["Basic.Ack", "Connection.CloseOk"]


def test_who_is_gone_is_told_nothing_any_more(setup: Setup) -> None:
    setup.publish("disk", delivery_mode=2)
    setup.client.lose()
    setup.sync(1)
    assert setup.client.take() == []


CHANNEL_GOODBYE = frame.marshal(Channel.Close(200, "", 0, 0), 1)
GOODBYE = frame.marshal(Connection.Close(200, "", 0, 0), 0)
GOODBYES = [
    pytest.param(CHANNEL_GOODBYE, "Channel.CloseOk", id="channel"),
    pytest.param(GOODBYE, "Connection.CloseOk", id="connection"),
]


@pytest.mark.parametrize(("goodbye", "answer"), GOODBYES)
def test_what_was_published_before_a_client_closes_is_confirmed_first(
    setup: Setup, goodbye: bytes, answer: str
) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) * 3 + goodbye)
    setup.server.end_turn()
    assert (setup.client.take(), setup.client.transport.is_closed) == ([], False)
    setup.sync(1)
    confirm, closed = setup.client.take()
    assert (confirm.name, confirm.delivery_tag, closed.name) == ("Basic.Ack", 3, answer)
    assert setup.client.transport.is_closed == (goodbye == GOODBYE)


@pytest.mark.parametrize(("goodbye", "answer"), GOODBYES)
def test_a_close_is_answered_although_the_disk_is_stuck(
    setup: Setup, goodbye: bytes, answer: str
) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) + goodbye)
    setup.server.advance(2.9)
    assert setup.client.take() == []
    setup.server.advance(0.1)
    assert names(setup.client.take()) == [answer]
    setup.sync(1)
    assert setup.client.take() == []


def test_other_channels_wait_on_when_one_is_closed_without_the_disk(setup: Setup) -> None:
    setup.client.open_channel(2)
    setup.client.call(Confirm.Select(), channel=2)
    durable = publish_frames("disk", delivery_mode=2)
    setup.client.feed(durable + publish_frames("disk", channel=2, delivery_mode=2))
    setup.client.feed(CHANNEL_GOODBYE)
    setup.server.advance(3)
    assert names(setup.client.take()) == ["Channel.CloseOk"]
    # Another one of the number.
    setup.client.open_channel(1)
    setup.client.call(Confirm.Select())
    setup.client.feed(durable)
    setup.sync(2)
    confirms = setup.client.take_with_channels()
    assert [(number, each.delivery_tag) for number, each in confirms] == [(1, 1), (2, 1)]


def test_what_a_channel_sends_behind_its_close_is_for_the_next_of_the_number(setup: Setup) -> None:
    again = b"".join(frame.marshal(each, 1) for each in (Channel.Open(), Confirm.Select()))
    durable = publish_frames("disk", delivery_mode=2)
    setup.client.feed(durable + CHANNEL_GOODBYE + again + durable)
    setup.server.advance(3)
    assert names(setup.client.take()) == ["Channel.CloseOk", "Channel.OpenOk", "Confirm.SelectOk"]
    setup.sync(1)
    (confirm,) = setup.client.take()
    assert (confirm.name, confirm.delivery_tag) == ("Basic.Ack", 1)


def test_what_was_published_before_an_error_of_the_channel_is_confirmed_first(
    setup: Setup,
) -> None:
    wrong = frame.marshal(Queue.Declare(queue="none", passive=True), 1)
    setup.client.feed(publish_frames("disk", delivery_mode=2) * 20 + wrong)
    setup.server.end_turn()
    assert setup.client.take() == []
    setup.sync(1)
    confirm, closed = setup.client.take()
    assert (confirm.name, confirm.delivery_tag, confirm.multiple) == ack(20, multiple=True)
    assert (closed.name, closed.reply_code) == ("Channel.Close", 404)
    setup.client.feed(frame.marshal(Channel.CloseOk(), 1))
    setup.client.open_channel(1)
    setup.sync(2)
    assert setup.client.take() == []


TOO_HIGH = frame.marshal(Channel.Open(), 1 << 15)


def test_what_was_published_before_an_error_of_the_connection_is_confirmed_first(
    setup: Setup,
) -> None:
    setup.client.open_channel(2)
    setup.client.send(Confirm.Select(), channel=2)
    setup.client.take()
    durable = publish_frames("disk", delivery_mode=2)
    setup.client.feed(durable * 20 + publish_frames("disk", delivery_mode=2, channel=2) + TOO_HIGH)
    setup.server.end_turn()
    assert setup.client.take() == []
    setup.sync(1)
    one, two, (channel, closed) = setup.client.take_with_channels()
    assert [(number, each.delivery_tag) for number, each in (one, two)] == [(1, 20), (2, 1)]
    assert (channel, closed.name, closed.reply_code) == (0, "Connection.Close", 530)
    setup.client.send(Connection.CloseOk(), channel=0)
    assert setup.client.transport.is_closed


def test_a_channel_error_just_before_one_of_the_connection_changes_nothing(setup: Setup) -> None:
    wrong = frame.marshal(Queue.Declare(queue="none", passive=True), 1)
    setup.client.feed(publish_frames("disk", delivery_mode=2) + wrong + TOO_HIGH)
    setup.sync(1)
    assert names(setup.client.take()) == ["Basic.Ack", "Channel.Close", "Connection.Close"]


def test_what_was_published_before_the_broker_closes_is_confirmed_first(setup: Setup) -> None:
    setup.publish("disk", delivery_mode=2)
    setup.client.connection.shutdown()
    assert setup.client.take() == []
    setup.sync(1)
    confirm, closed = setup.client.take()
    assert (confirm.name, confirm.delivery_tag) == ("Basic.Ack", 1)
    assert (closed.name, closed.reply_code) == ("Connection.Close", 320)


def test_a_client_that_says_goodbye_meanwhile_is_answered_behind_the_confirms(setup: Setup) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) + TOO_HIGH + GOODBYE)
    setup.server.end_turn()
    assert (setup.client.take(), setup.client.transport.is_closed) == ([], False)
    setup.sync(1)
    found = names(setup.client.take())
    assert found == ["Basic.Ack", "Connection.Close", "Connection.CloseOk"]
    assert setup.client.transport.is_closed


@pytest.mark.parametrize(
    ("last", "answers"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(TOO_HIGH, ["Connection.Close"], id="error"),
        pytest.param(
            TOO_HIGH + GOODBYE, ["Connection.Close", "Connection.CloseOk"], id="error-and-goodbye"
        ),
    ],
)
def test_what_was_published_before_a_client_sends_no_more_is_confirmed(
    setup: Setup, last: bytes, answers: list[str]
) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) * 3 + last)
    setup.client.end()
    assert (setup.client.take(), setup.client.transport.is_closed) == ([], False)
    setup.sync(1)
    confirm, *others = setup.client.take()
    assert (confirm.name, confirm.delivery_tag, names(others)) == ("Basic.Ack", 3, answers)
    assert setup.client.transport.is_closed


@pytest.mark.parametrize("last", [b"", TOO_HIGH], ids=["nothing", "error"])
def test_a_client_that_sends_no_more_is_not_kept_for_ever(setup: Setup, last: bytes) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) + last)
    setup.client.end()
    setup.server.advance(2.9)
    assert not setup.client.transport.is_closed
    setup.server.advance(0.1)
    assert setup.client.transport.is_closed


def test_a_client_that_sends_no_more_and_is_owed_nothing_is_closed_at_once(setup: Setup) -> None:
    setup.client.end()
    assert (setup.client.take(), setup.client.transport.is_closed) == ([], True)


def test_a_client_that_does_not_answer_the_close_but_sends_no_more_is_closed(setup: Setup) -> None:
    setup.client.feed(TOO_HIGH)
    assert names(setup.client.take()) == ["Connection.Close"]
    setup.client.end()
    assert setup.client.transport.is_closed


def test_the_close_of_the_connection_does_not_wait_for_ever_for_the_disk(setup: Setup) -> None:
    setup.client.feed(publish_frames("disk", delivery_mode=2) + TOO_HIGH)
    setup.server.advance(2.9)
    assert setup.client.take() == []
    setup.server.advance(0.1)
    assert names(setup.client.take()) == ["Connection.Close"]
    setup.sync(1)
    assert (setup.client.take(), setup.client.transport.is_closed) == ([], False)
    setup.server.advance(3)
    assert setup.client.transport.is_closed


# Transactions


@pytest.fixture
def tx() -> Setup:
    made = Setup()
    assert made.client.ask(Tx.Select()).name == "Tx.SelectOk"
    return made


def test_tx_publish_is_visible_after_commit_only(tx: Setup) -> None:
    tx.publish("memory", 3)
    assert tx.client.counts("memory") == (0, 0)
    assert tx.client.ask(Tx.Commit()).name == "Tx.CommitOk"
    assert tx.client.counts("memory") == (3, 0)
    tx.publish("memory", 3)
    assert tx.client.counts("memory") == (3, 0)


def test_tx_commit_ok_waits_for_the_write_batch(tx: Setup) -> None:
    tx.publish("disk", 2, delivery_mode=2)
    assert tx.client.call(Tx.Commit()) == []
    tx.sync(1)
    assert names(tx.client.take()) == ["Tx.CommitOk"]


def test_tx_commit_of_acknowledgements_waits_for_the_write_batch(tx: Setup) -> None:
    tx.publish("disk", delivery_mode=2)
    tx.client.call(Tx.Commit())
    tx.sync(1)
    tx.client.take()
    tx.storage.new_write_batch()
    tx.client.get("disk", no_ack=False)
    tx.client.call(Basic.Ack(1))
    assert tx.client.call(Tx.Commit()) == []
    tx.sync(2)
    assert names(tx.client.take()) == ["Tx.CommitOk"]


def test_tx_commit_of_nothing_waits_for_the_commit_before(tx: Setup) -> None:
    tx.publish("disk", delivery_mode=2)
    assert tx.client.call(Tx.Commit(), Tx.Commit()) == []
    tx.sync(1)
    assert names(tx.client.take()) == ["Tx.CommitOk"] * 2


def test_tx_rollback_drops_publishes(tx: Setup) -> None:
    tx.publish("memory", 3)
    assert tx.client.ask(Tx.Rollback()).name == "Tx.RollbackOk"
    tx.client.ask(Tx.Commit())
    assert tx.client.counts("memory") == (0, 0)


def test_tx_acknowledgements_take_effect_on_commit(tx: Setup) -> None:
    other = tx.server.open()
    other.feed(publish_frames("memory", b"1") + publish_frames("memory", b"2"))
    tx.client.consume("memory")
    tx.client.send(Basic.Ack(1), Basic.Reject(2, True))
    assert other.counts("memory") == (0, 1)
    tx.client.call(Basic.Cancel("c"))
    tx.client.ask(Tx.Commit())
    assert other.get("memory") == b"2"
    assert other.get("memory") is None


def test_tx_rollback_leaves_deliveries_unacknowledged(tx: Setup) -> None:
    other = tx.server.open()
    other.feed(publish_frames("memory", b"1") + publish_frames("memory", b"2"))
    assert tags(tx.client.consume("memory")) == [1, 2]
    tx.client.send(Basic.Ack(2, multiple=True))
    tx.client.ask(Tx.Rollback())
    assert tx.client.call(Basic.Ack(1)) == []
    tx.client.ask(Tx.Commit())
    tx.client.lose()
    assert other.get("memory") == b"2"


def test_tx_not_committed_is_undone_with_the_channel(tx: Setup) -> None:
    other = tx.server.open()
    other.publish("memory", b"1")
    tx.client.consume("memory")
    tx.client.send(Basic.Ack(1))
    tx.publish("memory")
    tx.client.lose()
    assert other.get("memory") == b"1"
    assert other.get("memory") is None


def test_tx_acknowledgement_of_an_unknown_tag_is_406(tx: Setup) -> None:
    assert_channel_closed(
        tx.client.ask(Basic.Ack(5)), 406, "PRECONDITION_FAILED - unknown delivery tag 5"
    )


def test_tx_mandatory_is_returned_on_commit(tx: Setup) -> None:
    tx.client.publish("nowhere", mandatory=True)
    assert tx.client.take() == []
    assert names(tx.client.call(Tx.Commit())) == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Tx.CommitOk",
    ]


def test_tx_exchange_that_is_gone_on_commit_is_404(tx: Setup) -> None:
    tx.client.exchange("e", "fanout")
    tx.publish("memory")
    tx.client.publish("k", exchange="e")
    tx.server.open().call(Exchange.Delete(exchange="e"))
    assert tx.client.ask(Tx.Commit()).reply_code == 404
    # All or nothing.
    assert len(tx.server.vhost.queue("memory")) == 0


def test_tx_with_a_publish_that_is_refused_does_nothing(tx: Setup) -> None:
    other = tx.server.open()
    other.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other.publish("memory", b"input")
    (method, *_) = tx.client.call(Basic.Get(queue="memory"))
    assert isinstance(method, Basic.GetOk)
    tx.client.send(Basic.Ack(delivery_tag=1))
    tx.client.publish("memory", b"output")
    tx.publish("full", 2)
    assert_channel_closed(
        tx.client.ask(Tx.Commit()),
        406,
        "PRECONDITION_FAILED - 'full' in vhost '/' has no room for the transaction",
    )
    assert other.counts("full") == (0, 0)
    (_, _, content) = other.call(Basic.Get(queue="memory", no_ack=True))
    assert content.value == b"input", "it is back, and alone"
    assert other.counts("memory") == (0, 0)


def test_tx_counts_each_queue_a_message_is_copied_to(tx: Setup) -> None:
    other = tx.server.open()
    other.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    tx.client.publish("full", b"1")
    tx.client.publish("memory", b"2", headers={"CC": ["full"]})
    received = tx.client.ask(Tx.Commit())
    assert isinstance(received, Channel.Close)
    assert (other.counts("full"), other.counts("memory")) == ((0, 0), (0, 0))


def test_tx_is_bounded(tx: Setup) -> None:
    body = b"z" * 1_000_000
    for _ in range(140):
        tx.client.feed(publish_frames("memory", body))
        received = tx.client.take()
        if received:
            break
    assert received[0].reply_code == 406
    assert "transaction is larger" in received[0].reply_text


def test_tx_has_so_many_deliveries_at_most(tx: Setup) -> None:
    vhost = tx.server.vhost
    for number in range(MAX_DELIVERIES // 100):
        vhost.bind(vhost.exchange("amq.fanout"), Binding(vhost.declare_queue(f"q{number}"), b""))
    for exchange in ["amq.fanout"] * 100:
        tx.client.publish("", b"x", exchange=exchange)
    tx.client.call(Tx.Commit())
    assert len(vhost.queue("q0")) == 100
    tx.client.feed(publish_frames("", b"x", "amq.fanout") * 101)
    assert_channel_closed(
        tx.client.ask(Tx.Commit()),
        406,
        f"PRECONDITION_FAILED - a transaction makes at most {MAX_DELIVERIES} deliveries",
    )
    assert len(vhost.queue("q0")) == 100


@pytest.mark.parametrize("method", [Tx.Commit(), Tx.Rollback()])
def test_tx_method_without_select_is_406(client: Client, method: Tx.Commit) -> None:
    assert_channel_closed(
        client.ask(method), 406, "PRECONDITION_FAILED - channel is not transactional"
    )


def test_confirm_and_tx_exclude_one_another_406(client: Client) -> None:
    client.ask(Tx.Select())
    assert_channel_closed(
        client.ask(Confirm.Select()),
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
    )
    client.send(Channel.CloseOk())
    client.open_channel(1)
    client.ask(Confirm.Select())
    assert_channel_closed(
        client.ask(Tx.Select()), 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    )


def test_tx_select_after_equal_publishes(client: Client) -> None:
    client.declare("q")
    client.feed(publish_frames("q", b"12345678") * 5)
    client.ask(Tx.Select())
    client.feed(publish_frames("q", b"12345678") * 5)
    assert client.counts("q") == (5, 0)
    client.ask(Tx.Commit())
    assert client.counts("q") == (10, 0)


def test_recover_in_a_transaction(tx: Setup) -> None:
    tx.server.open().publish("memory", b"1")
    tx.client.get("memory", no_ack=False)
    tx.client.call(Basic.Recover(True))
    tx.client.ask(Tx.Rollback())
    received = tx.client.call(Basic.Get(queue="memory"))
    assert bodies(received) == [b"1"]
    assert received[0].redelivered


def test_connection_error_in_a_transaction_releases_all(tx: Setup) -> None:
    other = tx.server.open()
    other.publish("memory", b"1")
    tx.client.consume("memory")
    tx.client.send(Basic.Ack(1))
    tx.client.send(Basic.Qos(prefetch_size=1))
    assert_connection_closed(tx.client, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")
    assert other.ask(Queue.Purge(queue="memory")).message_count == 1


@pytest.mark.pure
def test_a_rollback_does_not_go_through_what_is_unacknowledged_besides() -> None:
    def taken(deliveries: int) -> int:
        client = Server().open()
        client.declare("q")
        for _ in range(deliveries):
            client.publish("q")
        client.ask(Tx.Select())
        client.consume("q")
        client.send(Basic.Ack(delivery_tag=50))
        count = steps(lambda: client.send(Tx.Rollback()))
        assert len(client.connection.channels[1].unacked) == deliveries
        return count

    assert taken(1000) <= taken(100) + 50


def test_deliveries_that_were_put_back_are_taken_in_their_order() -> None:
    client = Server().open()
    client.declare("dead")
    client.declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    for number in range(6):
        client.publish("q", b"%d" % number)
    client.ask(Tx.Select())
    client.consume("q")
    client.send(Basic.Ack(delivery_tag=2), Basic.Ack(delivery_tag=1), Tx.Rollback())
    client.send(Basic.Nack(delivery_tag=4, multiple=True, requeue=False), Tx.Commit())
    client.send(Basic.Ack(delivery_tag=6), Basic.Ack(delivery_tag=5), Tx.Rollback())
    client.send(Basic.Nack(delivery_tag=0, multiple=True, requeue=False), Tx.Commit())
    client.take()
    assert [client.get("dead") for _ in range(7)] == [b"%d" % n for n in range(6)] + [None]


def test_what_an_acknowledgement_of_many_took_is_taken_again_after_a_rollback() -> None:
    client = Server().open()
    client.declare("q")
    for number in range(6):
        client.publish("q", b"%d" % number)
    client.ask(Tx.Select())
    client.consume("q")
    client.send(Basic.Ack(delivery_tag=3, multiple=True), Tx.Rollback())
    client.send(Basic.Ack(delivery_tag=4, multiple=True), Tx.Commit())
    client.take()
    assert [tag for tag, _ in client.connection.channels[1].unacked.items()] == [5, 6]


@pytest.mark.parametrize("size", [1, 30])
def test_a_publish_goes_where_the_topology_leads_once_it_is_complete(size: int) -> None:
    server = Server()
    client, other = server.open(), server.open()
    client.declare("q")
    client.ask(Confirm.Select())
    data = publish_frames("q", bytes(size), chunk=10)
    client.feed(data[:-1])
    other.ask(Queue.Delete(queue="q"))
    other.declare("q")
    client.feed(data[-1:])
    assert isinstance(client.take()[-1], Basic.Ack)
    assert other.get("q") == bytes(size)


def test_a_publish_to_an_exchange_that_goes_before_it_is_complete_is_refused() -> None:
    server = Server()
    client, other = server.open(), server.open()
    client.ask(Exchange.Declare(exchange="x"))
    data = publish_frames("q", b"body", exchange="x")
    client.feed(data[:-1])
    other.ask(Exchange.Delete(exchange="x"))
    client.feed(data[-1:])
    closed = client.take()[-1]
    assert isinstance(closed, Channel.Close)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
