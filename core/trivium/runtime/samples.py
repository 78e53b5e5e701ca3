"""What the broker's metrics are: each a ``Sample``, made when someone asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import (
    COUNTED,
    MESSAGE_RATE,
    NAMES,
    QUEUED_BYTES,
    RETAINED_BYTES,
    RETAINED_MESSAGES,
    VHOST,
    Account,
)
from trivium.observability.metrics import ROWS_AT_ONCE, Sample, histogram_samples, label
from trivium.queues.dead_letters import DEAD_LETTER_REASONS
from trivium.queues.given_up import DROP_REASONS
from trivium.vhost.totals import Totals

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker


#: Limits that are shown with what there is of each, at most: a scrape is to stay small.
MAX_LIMITS: Final = 1000


def broker_samples(broker: Broker) -> Iterator[Sample | None]:
    """All of them; None where others may be served."""
    yield from _pauses(broker)
    yield from _messages(broker)
    yield from _contents(broker)
    yield from _quotas(broker)
    yield from _timings(broker)
    yield from _storage(broker)


def _quotas(broker: Broker) -> list[Sample]:
    """What was refused, and of each limit how much there is."""
    refused = [
        Sample(
            "quota_refusals_total",
            "counter",
            "What was refused since as much was there as may be",
            count,
            f'scope="{scope}",limit="{NAMES[what]}"',
        )
        for (scope, what), count in sorted(broker.quotas.refusals.items())
    ]
    waits = Sample(
        "quota_waits_total",
        "counter",
        "Times that a publisher waited since it was too fast",
        broker.quotas.waits,
    )
    limits: list[Sample] = []
    used: list[Sample] = []
    for account in broker.quotas.accounts():
        for what in range(MESSAGE_RATE):
            if account.limits[what] < 0:
                continue
            if len(limits) == MAX_LIMITS:
                break
            name = label("name", account.name)
            labels = f'scope="{account.scope}",{name},limit="{NAMES[what]}"'
            text = "Limits, by whose they are"
            limits.append(Sample("quota_limit", "gauge", text, account.limits[what], labels))
            count = _used(broker, account, what)
            used.append(Sample("quota_used", "gauge", "How much there is of it", count, labels))
    return [*refused, waits, *limits, *used]


def _used(broker: Broker, account: Account, what: int) -> int:
    if what < COUNTED:
        return account.used[what]
    vhost = broker.vhosts.get(account.name) if account.scope == VHOST else None
    if vhost is None:
        return 0
    counts = {
        RETAINED_MESSAGES: len(vhost.retained),
        RETAINED_BYTES: vhost.retained.bytes,
        QUEUED_BYTES: vhost.queued_bytes,
    }
    return counts[what]


def _contents(broker: Broker) -> Iterator[Sample | None]:
    """What is there: queues, streams and what is in them; and what became of it."""
    totals = Totals()
    queues = streams = ready = unsettled = retained = 0
    for vhost in list(broker.vhosts.values()):
        # What goes meanwhile counts as it was, and once.
        totals.add_totals(vhost.gone)
        queues += len(vhost.queues)
        streams += len(vhost.streams)
        retained += len(vhost.retained)
        for stream in vhost.streams.values():
            totals.add_stream(stream)
        for count, queue in enumerate(list(vhost.queues.values())):
            totals.add(queue)
            ready += len(queue)
            unsettled += queue.unsettled
            if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                yield None
    yield Sample("queues", "gauge", "Queues", queues)
    yield Sample("streams", "gauge", "Streams", streams)
    text = "Messages put into streams"
    yield Sample("stream_messages_total", "counter", text, totals.stream_messages)
    text = "Records of streams that clients were sent"
    yield Sample("stream_records_read_total", "counter", text, totals.records_read)
    yield Sample("retained_messages", "gauge", "Retained", retained)
    text = "Messages in queues"
    yield Sample("queue_messages", "gauge", text, ready, 'state="ready"')
    yield Sample("queue_messages", "gauge", text, unsettled, 'state="unsettled"')
    yield from _became(totals)


def _became(totals: Totals) -> Iterator[Sample]:
    """What became of messages in queues."""
    for name, text, value in (
        ("published", "Messages that queues took", totals.published),
        ("refused", "Messages that queues had no room for", totals.refused),
        ("redelivered", "Messages handed to consumers again", totals.redelivered),
        ("acknowledged", "Messages that clients settled", totals.acknowledged),
        ("expired", "Messages that expired", totals.expired),
    ):
        yield Sample(f"queue_messages_{name}_total", "counter", text, value)
    for name, text, manual, auto in (
        ("delivered", "Handed to consumers", totals.delivered, totals.delivered_settled),
        ("got", "Taken without a consumer", totals.got, totals.got_settled),
    ):
        full = f"queue_messages_{name}_total"
        yield Sample(full, "counter", text, manual, 'ack="manual"')
        yield Sample(full, "counter", text, auto, 'ack="auto"')
    for name, text, counts, reasons in (
        (
            "dead_lettered",
            "Given up, to a dead letter exchange",
            totals.dead_lettered,
            DEAD_LETTER_REASONS,
        ),
        ("dropped", "Given up for good", totals.dropped, DROP_REASONS),
    ):
        # Also those that have not come yet: a rate needs to have seen a counter at 0.
        for reason, count in sorted({**dict.fromkeys(reasons, 0), **counts}.items()):
            full = f"queue_messages_{name}_total"
            yield Sample(full, "counter", text, count, f'reason="{reason}"')


def _timings(broker: Broker) -> list[Sample]:
    """How long things take."""
    timings = broker.timings
    return [
        *histogram_samples("turn_seconds", "Length of turns", timings.turns),
        *histogram_samples(
            "publish_acknowledge_seconds",
            "From the turn in which messages came to the disk having them",
            timings.acknowledgements,
        ),
        *histogram_samples(
            "publish_deliver_seconds",
            "From publish to the delivery by a queue, of each 64th delivery of a queue",
            timings.deliveries,
        ),
    ]


def _storage(broker: Broker) -> list[Sample]:
    """What the storage has measured, if it is on disk."""
    found = broker.storage.figures()
    if found is None:
        return []
    return [
        *histogram_samples(
            "storage_sync_seconds", "To write and sync a batch, or to sync some", found.syncs
        ),
        *histogram_samples("storage_write_seconds", "To write a batch unsynced", found.writes),
        *histogram_samples("storage_batch_bytes", "Size of write batches", found.batches),
        *histogram_samples("storage_checkpoint_seconds", "Checkpoints", found.checkpoints),
        Sample(
            "storage_recovery_seconds",
            "gauge",
            "Time that the start took to recover",
            round(found.recovery_seconds, 6),
        ),
        Sample(
            "storage_journal_bytes",
            "gauge",
            "Bytes of the journal that a start would read",
            found.journal_bytes,
        ),
        Sample("storage_journal_files", "gauge", "Files of the journal", found.journal_files),
        Sample("storage_segments", "gauge", "Segment files", found.segments),
        Sample("storage_segment_bytes", "gauge", "Bytes in them", found.segment_bytes),
    ]


def _messages(broker: Broker) -> list[Sample]:
    """What became of messages that are out of the ordinary."""
    vhosts = list(broker.vhosts.values())
    return [
        Sample(
            "permission_denials_total",
            "counter",
            "Operations refused for want of a permission",
            broker.permissions.denials,
        ),
        Sample(
            "suspended_declarations",
            "gauge",
            "Bindings, dead letter and alternate exchanges, and policies that pass nothing on",
            sum(len(vhost.suspensions) for vhost in vhosts),
        ),
        Sample(
            "audit_lines_lost_total",
            "counter",
            "Lines of the audit log that could not be written",
            0 if broker.server is None else broker.server.audit_lines_lost,
        ),
        Sample(
            "event_messages_dropped_total",
            "counter",
            "Events that came too fast to be made messages",
            broker.events.dropped,
        ),
        Sample(
            "firehose_messages_dropped_total",
            "counter",
            "Messages that the firehose left out, as there were too many at once",
            broker.virtual_hosts.traces_dropped,
        ),
        *_span_samples(broker),
        Sample(
            "deduplicated_messages_total",
            "counter",
            "Repetitions that were acknowledged and dropped",
            sum(vhost.deduplication.duplicates for vhost in vhosts),
        ),
        Sample(
            "delayed_messages",
            "gauge",
            "Messages that are routed later",
            sum(len(vhost.delays) for vhost in vhosts),
        ),
        *[
            Sample(
                "dead_letters_lost_total",
                "counter",
                "Dead letters that nobody got",
                count,
                f'reason="{why}"',
            )
            for why, count in broker.dead_letters.lost.counts.items()
        ],
    ]


def _span_samples(broker: Broker) -> Iterator[Sample]:
    spans = None if broker.server is None else broker.server.spans
    if spans is not None:
        yield Sample("spans_sent_total", "counter", "Spans that the collector took", spans.sent)
        yield Sample(
            "spans_dropped_total",
            "counter",
            "Spans that were too many, or that the collector refused",
            spans.dropped,
        )


def _pauses(broker: Broker) -> list[Sample]:
    """Why publishers wait, and how often they did."""
    alarms = broker.alarms
    text = "Whether publishers are paused for it"
    return [
        Sample("alarm", "gauge", text, int(alarms.is_memory_short), 'resource="memory"'),
        Sample("alarm", "gauge", text, int(alarms.is_disk_short), 'resource="disk"'),
        Sample("memory_high_bytes", "gauge", "Limit of memory", alarms.memory_high),
        Sample("disk_low_bytes", "gauge", "Limit of free disk", alarms.disk_low),
        Sample("disk_free_bytes", "gauge", "Free disk, -1: unknown", broker.driver.free_disk()),
        Sample(
            "storage_pending_bytes",
            "gauge",
            "Bytes that wait for the disk",
            broker.storage.pending_bytes,
        ),
        Sample(
            "storage_pauses_total",
            "counter",
            "Times that publishers waited for the disk",
            broker.pacing.brief_pauses,
        ),
        Sample(
            "publisher_waits_total",
            "counter",
            "Times that a publisher waited for live subscribers",
            broker.pacing.waits,
        ),
    ]
