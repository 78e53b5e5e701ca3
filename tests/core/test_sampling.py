"""Rates and histories, on a clock of the test's own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pamqp.commands import Queue

from tests.support.compatible import Site as CompatibleSite
from trivium.management.sampling import IDLE_MS

#: What two clients did: of three messages one led nowhere, one was got, and one is there.
COUNTED = {
    "publish": 3,
    "deliver_get": 1,
    "get_no_ack": 1,
    "get": 0,
    "get_empty": 1,
    "deliver": 0,
    "ack": 0,
    "confirm": 0,
    "drop_unroutable": 1,
    "return_unroutable": 0,
    "redeliver": 0,
}


class Site(CompatibleSite):
    """One whose queue is looked at."""

    def queue(self, **query: str) -> Any:
        return self.get("queues / q", **query)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.client.publish("q")


def test_a_rate_is_that_of_the_last_five_seconds() -> None:
    site = Site()
    site.publish(3)
    found = site.queue()
    # Nobody has looked before.
    assert (found["messages"], found["messages_details"]["rate"]) == (3, 0.0)
    assert found["message_stats"]["publish"] == 3
    assert found["message_stats"]["publish_details"]["rate"] == 0.0
    site.server.advance(5)
    site.publish(20)
    site.server.advance(5)
    found = site.queue()
    assert found["message_stats"]["publish"] == 23
    assert found["message_stats"]["publish_details"]["rate"] == 4.0
    assert found["messages_details"]["rate"] == 4.0
    assert site.client.get("q") is not None
    site.server.advance(5)
    found = site.queue()
    assert found["messages_details"]["rate"] == -0.2
    assert found["message_stats"]["get_no_ack"] == 1
    assert found["message_stats"]["deliver_get_details"]["rate"] == 0.2
    assert found["message_stats"]["publish_details"]["rate"] == 0.0


def test_a_history_begins_when_it_is_asked_for() -> None:
    site = Site()
    site.publish(1)
    site.queue()
    site.server.advance(5)
    asked = {"lengths_age": "20", "lengths_incr": "10"}
    asked |= {"msg_rates_age": "60", "msg_rates_incr": "5"}
    site.queue(**asked)
    for _ in range(6):
        site.publish(10)
        site.server.advance(5)
    found = site.queue(**asked)
    lengths = found["messages_details"]
    assert [sample["sample"] for sample in lengths["samples"]] == [61, 41, 21]
    times = [sample["timestamp"] for sample in lengths["samples"]]
    assert [times[0] - time for time in times] == pytest.approx([0, 10_000, 20_000], abs=100)
    assert lengths["avg"] == 41
    assert lengths["avg_rate"] == pytest.approx(2.0)
    published = found["message_stats"]["publish_details"]
    assert [sample["sample"] for sample in published["samples"]][:3] == [61, 51, 41]
    assert "samples" not in site.queue()["messages_details"]


@pytest.mark.parametrize("age", ["", "x", "0", "-1", "99999999999"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    site = Site()
    assert site.queue(lengths_age=age, lengths_incr="5")["error"] == "bad_request"


def test_connections_channels_and_exchanges_have_figures() -> None:
    site = Site()
    site.client.bind("q", "amq.direct", "k")
    site.client.publish("k", exchange="amq.direct")
    stats = site.get("exchanges / amq.direct")["message_stats"]
    assert (stats["publish_in"], stats["publish_out"]) == (1, 1)
    assert "message_stats" not in site.get("exchanges / amq.fanout")
    (connection,) = site.server.broker.connections
    assert connection.traffic.bytes_received > 0


def test_it_ends_when_nobody_asks_any_more_and_forgets_what_is_gone() -> None:
    site = Site()
    site.publish(1)
    site.queue()
    site.server.advance(11)
    site.publish(1)
    site.server.advance(5)
    assert site.queue()["messages_details"]["rate"] == 0.2
    site.server.advance(IDLE_MS / 1000 + 10)
    assert site.server.broker.timeouts.next_at() == 0
    # It begins anew.
    assert site.queue()["messages_details"]["rate"] == 0.0
    site.server.advance(5)
    site.publish(5)
    site.server.advance(5)
    assert site.queue()["messages_details"]["rate"] == 1.0


def test_what_does_not_move_any_more_says_since_when() -> None:
    site = Site()
    unused = site.queue()["idle_since"]
    site.server.advance(5)
    # Nobody has used it since it was declared.
    assert site.queue()["idle_since"] == unused
    site.publish(1)
    assert "idle_since" not in site.queue()
    site.server.advance(6)
    site.publish(1)
    site.server.advance(6)
    moved = site.server.broker.now_ms
    # The last look has seen it move.
    assert "idle_since" not in site.queue()
    assert "idle_since" not in site.get("channels")[0]
    site.server.advance(20)
    for found in (site.queue(), site.get("channels")[0]):
        at = datetime.fromisoformat(found["idle_since"]).timestamp() * 1000
        assert unused < found["idle_since"]
        assert 0 <= moved - at <= 6000


def test_the_broker_and_virtual_hosts_sum_up_what_their_clients_did() -> None:
    site = Site()
    other = site.server.open()
    site.client.publish("q")
    assert site.client.get("q") is not None
    assert site.client.get("q") is None
    site.client.publish("nobody")
    other.publish("q")
    other.lose()
    (vhost,) = [found for found in site.get("vhosts") if found["name"] == "/"]
    for stats in (site.get("overview")["message_stats"], vhost["message_stats"]):
        assert {name: stats[name] for name in COUNTED} == COUNTED
    assert site.queue()["message_stats"]["get_empty"] == 1
    (channel,) = site.get("channels")
    assert (channel["message_stats"]["publish"], channel["message_stats"]["get_empty"]) == (2, 1)
    (connection,) = site.server.broker.connections
    sent = vhost["send_oct"]
    assert vhost["recv_oct"] > connection.traffic.bytes_received > 0 < sent
    (found,) = site.get("connections")
    assert found["recv_cnt"] == connection.traffic.reads > 0 < found["send_cnt"]


def test_what_comes_and_goes_is_counted() -> None:
    site = Site()
    for _ in range(2):
        site.client.declare("other")
    assert site.client.ask(Queue.Delete(queue="other")).name == "Queue.DeleteOk"
    vhost = site.server.broker.vhost("/")
    vhost.declare_stream("s")
    vhost.delete_stream("s")
    site.server.open().lose()
    churn = site.get("overview")["churn_rates"]
    wanted = {
        "connection_created": 2,
        "connection_closed": 1,
        "channel_created": 2,
        "channel_closed": 1,
        "queue_declared": 4,
        "queue_created": 3,
        "queue_deleted": 2,
    }
    assert {name: churn[name] for name in wanted} == wanted
    assert site.get("nodes")[0]["queue_declared_details"] == {"rate": 0.0}
