"""Counters, and their Prometheus text.

Counters are plain integer attributes, so that counting on the hot path costs one addition:
``metrics.messages_received += 1``. Nothing is rendered, looked up or locked until somebody scrapes.

The number of time series is fixed by the number of protocols. Queues, streams and clients are only
ever summed up: a scrape stays small however many of them there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


class ProtocolMetrics:
    """What one adapter counts, since the start of the process."""

    def __init__(self) -> None:
        self.connections_opened = 0
        self.connections_closed = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        #: messages that clients published
        self.messages_received = 0
        #: messages that were delivered to clients, redeliveries included
        self.messages_sent = 0
        self.messages_redelivered = 0
        #: published messages that no binding wanted
        self.messages_unroutable = 0
        #: messages given up on the way to a client: too large, expired, or its buffer was full
        self.messages_dropped = 0
        #: message properties that the target protocol cannot carry
        self.properties_dropped = 0
        #: connections closed because of a malformed or forbidden frame
        self.protocol_errors = 0
        self.authentication_failures = 0


#: attribute of ProtocolMetrics, name without prefix, help
_PROTOCOL_COUNTERS: Final = (
    ("connections_opened", "connections_opened_total", "Connections accepted"),
    ("connections_closed", "connections_closed_total", "Connections closed, by either side"),
    ("bytes_received", "received_bytes_total", "Bytes read from clients"),
    ("bytes_sent", "sent_bytes_total", "Bytes written to clients"),
    ("messages_received", "messages_received_total", "Messages published by clients"),
    ("messages_sent", "messages_sent_total", "Messages delivered to clients"),
    ("messages_redelivered", "messages_redelivered_total", "Messages delivered again"),
    ("messages_unroutable", "messages_unroutable_total", "Messages that no binding wanted"),
    ("messages_dropped", "messages_dropped_total", "Messages given up before a client got them"),
    ("properties_dropped", "properties_dropped_total", "Properties that a target cannot carry"),
    ("protocol_errors", "protocol_errors_total", "Connections closed for a malformed frame"),
    ("authentication_failures", "authentication_failures_total", "Refused credentials"),
)


class Sample:
    """One metric without labels, or with labels that are already written out (`state="ready"`)."""

    def __init__(self, name: str, kind: str, text: str, value: float, labels: str = "") -> None:
        self.name = name
        #: `counter` or `gauge`
        self.kind = kind
        self.text = text
        self.value = value
        self.labels = labels


def render(protocols: dict[str, ProtocolMetrics], samples: Iterable[Sample]) -> str:
    """The Prometheus text format, version 0.0.4.

    Samples of one name must follow one another; all names get the prefix `trivium_` unless they
    begin with `process_`.
    """
    lines: list[str] = []
    for attribute, name, text in _PROTOCOL_COUNTERS:
        _describe(lines, f"trivium_{name}", "counter", text)
        for protocol, metrics in protocols.items():
            value: int = getattr(metrics, attribute)
            lines.append(f'trivium_{name}{{protocol="{protocol}"}} {value}')
    _describe(lines, "trivium_connections", "gauge", "Open connections")
    for protocol, metrics in protocols.items():
        count = metrics.connections_opened - metrics.connections_closed
        lines.append(f'trivium_connections{{protocol="{protocol}"}} {count}')
    previous = ""
    for sample in samples:
        full = sample.name if sample.name.startswith("process_") else f"trivium_{sample.name}"
        if full != previous:
            _describe(lines, full, sample.kind, sample.text)
            previous = full
        labels = f"{{{sample.labels}}}" if sample.labels else ""
        # Compiled code turns the whole numbers that it is given into floats.
        whole = int(sample.value)
        number = str(whole) if whole == sample.value else repr(sample.value)
        lines.append(f"{full}{labels} {number}")
    return "\n".join(lines) + "\n"


def _describe(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
