"""What the broker's metrics are: each a ``Sample``, made when someone asks."""

from __future__ import annotations

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
from trivium.observability.metrics import Sample

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker


#: Limits that are shown with what there is of each, at most: a scrape is to stay small.
MAX_LIMITS: Final = 1000


def broker_samples(broker: Broker) -> list[Sample]:
    """All of them."""
    return [*_pauses(broker), *_messages(broker), *_contents(broker), *_quotas(broker)]


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
            name = account.name.replace("\\", "\\\\").replace('"', '\\"')
            labels = f'scope="{account.scope}",name="{name}",limit="{NAMES[what]}"'
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


def _contents(broker: Broker) -> list[Sample]:
    """What is there: queues, streams and what is in them."""
    vhosts = list(broker.vhosts.values())
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    streams = [stream for vhost in vhosts for stream in vhost.streams.values()]
    ready = sum(len(queue) for queue in queues)
    unsettled = sum(queue.unsettled for queue in queues)
    retained = sum(len(vhost.retained) for vhost in vhosts)
    text = "Messages in queues"
    return [
        Sample("queues", "gauge", "Queues", len(queues)),
        Sample("streams", "gauge", "Streams", len(streams)),
        Sample(
            "stream_messages_total",
            "counter",
            "Messages put into streams",
            sum(stream.published for stream in streams),
        ),
        Sample("retained_messages", "gauge", "Retained", retained),
        Sample("queue_messages", "gauge", text, ready, 'state="ready"'),
        Sample("queue_messages", "gauge", text, unsettled, 'state="unsettled"'),
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
            broker.brief_pauses,
        ),
        Sample(
            "publisher_waits_total",
            "counter",
            "Times that a publisher waited for live subscribers",
            broker.pacing.waits,
        ),
    ]
