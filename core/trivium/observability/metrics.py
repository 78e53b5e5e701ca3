"""Counters, and their Prometheus text.

Counters are plain integer attributes, so that counting on the hot path costs one addition:
``metrics.messages_received += 1``. Nothing is rendered, looked up or locked until somebody scrapes.

What is of a protocol, or of the broker, is a sample of its own. What is of a queue, a stream or
another object is shown only to who asks for it, and only so much: see ``Room``. An answer is made
piece by piece, so that messages are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64

from trivium.common.histograms import Histogram

#: Rows after which others may be served.
ROWS_AT_ONCE: Final = 32


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
        #: bytes of payload that came and left, and requests to connect: kept of MQTT alone
        self.payload_bytes_received: i64 = 0
        self.payload_bytes_sent: i64 = 0
        self.connects_received: i64 = 0


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

    def __init__(
        self, name: str, kind: str, text: str, value: float, labels: str = "", suffix: str = ""
    ) -> None:
        self.name = name
        #: `counter`, `gauge` or `histogram`
        self.kind = kind
        self.text = text
        self.value = value
        self.labels = labels
        #: behind the name, of a histogram's parts
        self.suffix = suffix


def histogram_samples(name: str, text: str, histogram: Histogram) -> list[Sample]:
    """The buckets, sum and count of a histogram."""
    samples: list[Sample] = []
    count = 0
    for bound, found in zip([*histogram.bounds, None], list(histogram.counts), strict=True):
        count += found
        labels = f'le="{"+Inf" if bound is None else bound}"'
        samples.append(Sample(name, "histogram", text, count, labels, "_bucket"))
    samples.append(Sample(name, "histogram", text, round(histogram.sum, 9), "", "_sum"))
    samples.append(Sample(name, "histogram", text, count, "", "_count"))
    return samples


def label(name: str, value: str) -> str:
    """A label as the text format has it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def render(
    protocols: dict[str, ProtocolMetrics], samples: Iterable[Sample | None]
) -> Iterator[str]:
    """The Prometheus text format, version 0.0.4, piece by piece; an empty piece for each None,
    where others may be served.

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
        if sample is None:
            yield ""
            continue
        full = sample.name if sample.name.startswith("process_") else f"trivium_{sample.name}"
        if full != previous:
            _describe(lines, full, sample.kind, sample.text)
            previous = full
        lines.append(line_of(full + sample.suffix, sample.labels, sample.value))
    yield "\n".join(lines) + "\n"


def line_of(name: str, labels: str, value: float) -> str:
    """The line of one sample."""
    shown = f"{{{labels}}}" if labels else ""
    # Compiled code turns the whole numbers that it is given into floats.
    whole = int(value)
    return f"{name}{shown} {whole if whole == value else repr(value)}"


def _describe(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")


@dataclass(frozen=True)
class Metric:
    """A metric of objects of a kind: each sample has labels that say of which."""

    name: str
    #: `counter` or `gauge`
    kind: str
    text: str


#: What one object shows: the index of a metric, labels written out, and the value.
Row = list[tuple[int, str, float]]


class Room:
    """How many samples of objects an answer may have."""

    def __init__(self, most: int) -> None:
        self.left = most
        #: objects that are not shown
        self.left_out = 0


class Objects:
    """Metrics of objects, of which each row shows one; others may be served at an empty row too."""

    def __init__(self, metrics: tuple[Metric, ...], rows: Iterable[Row]) -> None:
        self._metrics = metrics
        self._names = [f"trivium_detailed_{metric.name}" for metric in metrics]
        self._lines: list[list[str]] = [[] for _ in metrics]
        self._rows = iter(rows)
        # One that had no room.
        self._next: Row | None = None
        self.is_whole = False

    def take(self, room: Room, most: int) -> Iterator[str]:
        """Take rows of ``most`` samples at most; an empty piece where others may be served."""
        count = 0
        while True:
            row = self._next
            self._next = None
            if row is None:
                row = next(self._rows, None)
            if row is None:
                self.is_whole = True
                return
            if len(row) > most:
                self._next = row
                return
            most -= len(row)
            room.left -= len(row)
            for index, labels, value in row:
                self._lines[index].append(line_of(self._names[index], labels, value))
            count += 1
            if not row or count % ROWS_AT_ONCE == 0:
                yield ""

    def leave_out(self, room: Room) -> Iterator[str]:
        """Count the rows that are left, taking those that there is room for yet."""
        while not self.is_whole:
            yield from self.take(room, room.left)
            if self._next is not None:
                self._next = None
                room.left_out += 1
                if room.left_out % ROWS_AT_ONCE == 0:
                    yield ""

    def text(self) -> Iterator[str]:
        """What was taken, metric by metric."""
        for metric, name, found in zip(self._metrics, self._names, self._lines, strict=True):
            if found:
                head: list[str] = []
                _describe(head, name, metric.kind, metric.text)
                yield "\n".join([*head, *found]) + "\n"


def render_objects(families: list[Objects], room: Room) -> Iterator[str]:
    """``render`` of metrics of objects. Where there is too little room for all, each family has the
    same share of it; what one does not need is for the others."""
    growing = families
    before = -1
    while growing and room.left != before:
        before = room.left
        share = before // len(growing)
        for family in growing:
            yield from family.take(room, share)
        growing = [family for family in growing if not family.is_whole]
    for family in growing:
        yield from family.leave_out(room)
    for family in families:
        yield from family.text()
