"""Deduplication by the header x-deduplication-header or the property message id."""

from __future__ import annotations

import msgpack
import pytest

from tests.support.native import Server, entry, publish
from trivium.routing.exchanges import Binding
from trivium_native.wire import frames


@pytest.mark.parametrize("field", ["header", "message id"])
def test_a_repetition_is_confirmed_and_dropped(field: str) -> None:
    server = Server()
    queue = server.vhost.declare_queue("q", arguments={"x-message-deduplication": True})
    server.vhost.bind(server.vhost.exchange("amq.topic"), Binding(queue, b"k"))
    client = server.open()
    for value in ("a", "a", "b"):
        fields: dict[int, object] = {7: value}
        if field == "header":
            fields = {14: [["x-deduplication-header", value]]}
        body = publish(entry(properties=msgpack.packb(fields)))
        ((kind, _, _),) = client.send(frames.PUBLISH, 5, body)
        assert kind == frames.CONFIRM
    assert len(queue) == 2
