"""Rates and histories, on a clock of the test's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.amqp import Client, Server
from trivium.listen import ListenerConfig
from trivium.management.management import Management
from trivium.management.sampling import IDLE_MS
from trivium.observability.api import ApiAnswer, ApiRequest
from trivium.security.identity import Identity


class Site:
    """A broker whose API the test asks, and a client of it."""

    def __init__(self) -> None:
        self.server = Server()
        self._management = Management(self.server.broker, lambda work: work())
        self.client: Client = self.server.open()
        self.client.declare("q")

    def get(self, path: str, **query: str) -> Any:
        answers: list[ApiAnswer] = []
        request = ApiRequest(
            method="GET",
            path=tuple(path.split(" ")),
            query=query,
            body=None,
            identity=Identity("root", frozenset(("administrator",))),
            address="",
            listener=ListenerConfig(protocol="http", address="127.0.0.1:0"),
        )
        self._management.ask(request, answers.append)
        self.server.settle()
        (answer,) = answers
        if answer.parts is None:
            return answer.body
        return json.loads(b"".join(answer.parts))

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
