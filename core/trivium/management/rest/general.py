"""The broker as a whole: who asks, what there is, where it listens, how it is."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trivium import __version__
from trivium.errors import NotFound
from trivium.management.census import Census
from trivium.management.compatible.shown import NODE
from trivium.management.endpoints import ANYBODY, WATCHERS
from trivium.management.rest.document import document
from trivium.management.rest.operations import answer, listed, operation
from trivium.management.rest.schema import About, Count, Name, Table, shown_model
from trivium.management.values import encode
from trivium.observability.api import ApiAnswer
from trivium.security.users import INTERNAL

if TYPE_CHECKING:
    from trivium.common.histograms import Histogram
    from trivium.config import Fsync
    from trivium.listen import ListenerConfig
    from trivium.management.calls import Call
    from trivium.management.state import ManagementState
    from trivium.observability.metrics import ProtocolMetrics
from trivium.storage.figures import StorageFigures

_Bytes = Annotated[int, About(text="bytes; -1 where they are not known", least=-1)]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    tags: list[str]
    has_own_keys: Annotated[
        bool, About(text="whether it may make API keys of its own: it came with its password")
    ]


@dataclass(frozen=True, slots=True)
class Alarm:
    """What publishers wait for while it is on."""

    resource: Literal["memory", "disk"]
    is_on: bool
    current_bytes: _Bytes
    limit_bytes: Annotated[int, About(text="0 where there is no limit", least=0)]


@dataclass(frozen=True, slots=True)
class Protocol:
    """What one protocol has counted since the start."""

    name: Name
    connections: Count
    connections_opened: Count
    messages_received: Count
    messages_sent: Count
    messages_redelivered: Count
    messages_unroutable: Count
    messages_dropped: Count
    bytes_received: Count
    bytes_sent: Count
    protocol_errors: Count
    authentication_failures: Count


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of the event loop, by their length: nobody is served while one lasts."""

    most_ms: Annotated[float | None, About(text="that they took; null: any other")]
    count: Count


@dataclass(frozen=True, slots=True)
class Overview:
    """What there is, in the virtual hosts that the caller may see."""

    version: str
    state: Literal["running", "blocked"]
    uptime_ms: Annotated[int, About(text="milliseconds since the start", least=0)]
    turns: Annotated[list[Turns], About(text="since the start, the shortest first")]
    alarms: list[Alarm]
    protocols: list[Protocol]
    vhosts: Count
    exchanges: Count
    queues: Count
    streams: Count
    groups: Count
    connections: Count
    consumers: Count
    messages_ready: Count
    messages_unsettled: Count
    messages_delayed: Count
    records: Count
    retained_messages: Count


@dataclass(frozen=True, slots=True)
class Node:
    """A process that serves clients."""

    name: Name
    version: str
    state: Literal["running", "blocked"]
    uptime_ms: Annotated[int, About(text="milliseconds since the start", least=0)]
    process_id: Count
    memory_bytes: _Bytes
    free_disk_bytes: _Bytes
    vhosts: Count
    connections: Count


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients come in."""

    name: Name
    protocol: Name
    address: Annotated[str, About(text="host and port, or the path of a Unix socket")]
    tls: bool
    websocket: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """How often something was done, and how long that took in all."""

    count: Count
    total_ms: Annotated[float, About(text="milliseconds")]


@dataclass(frozen=True, slots=True)
class Disk:
    """What is on the disk, and what was measured of it since the start."""

    journal_bytes: Annotated[int, About(text="that wait for a checkpoint", least=0)]
    journal_files: Count
    segment_bytes: Count
    segment_files: Count
    writes: Annotated[Measured, About(text="write batches to the journal, not synced")]
    syncs: Annotated[Measured, About(text="the same, with the sync")]
    batches: Count
    batch_bytes: Annotated[int, About(text="in all write batches", least=0)]
    checkpoints: Measured
    recovery_ms: Annotated[float, About(text="that the start took to recover")]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where durable things are kept."""

    kind: Literal["memory", "disk"]
    fsync: Annotated[str, About(text="when the journal is synced")]
    directory: Annotated[str, About(text='"" where nothing is kept')]
    write_batch: Annotated[int, About(text="number of the one that is being filled", least=0)]
    durable_write_batch: Annotated[int, About(text="number of the newest durable one", least=-1)]
    pending_bytes: Annotated[int, About(text="bytes that wait for the disk", least=0)]
    pauses: Annotated[int, About(text="times that publishers waited for the disk", least=0)]
    free_bytes: _Bytes
    logs: Count
    disk: Annotated[Disk | None, About(text="null where all is in memory")]


def caller(call: Call) -> Caller:
    """Who asks."""
    identity = call.identity
    return Caller(identity.name, sorted(identity.tags), has_own_keys(call))


def has_own_keys(call: Call) -> bool:
    """Whether the caller may make keys of its own: a key or token must not give more, nor for
    longer, than itself, nor the keys of whoever else is called the same."""
    login = call.request.login
    return login is not None and login.method == INTERNAL


def whoami(call: Call) -> ApiAnswer:
    """Who asks."""
    return answer(caller(call))


def alarms_of(call: Call) -> list[Alarm]:
    """Those of memory and disk."""
    broker = call.broker
    alarms = broker.alarms
    driver = broker.driver
    return [
        Alarm("memory", alarms.is_memory_short, driver.resident_memory(), alarms.memory_high),
        Alarm("disk", alarms.is_disk_short, driver.free_disk(), alarms.disk_low),
    ]


def alarms(call: Call) -> ApiAnswer:
    """Both."""
    return listed(call, alarms_of(call), lambda alarm: alarm, lambda alarm: (alarm.resource,))


def _protocol(name: str, metrics: ProtocolMetrics) -> Protocol:
    return Protocol(
        name,
        metrics.connections_opened - metrics.connections_closed,
        metrics.connections_opened,
        metrics.messages_received,
        metrics.messages_sent,
        metrics.messages_redelivered,
        metrics.messages_unroutable,
        metrics.messages_dropped,
        metrics.bytes_received,
        metrics.bytes_sent,
        metrics.protocol_errors,
        metrics.authentication_failures,
    )


def _turns(turns: Histogram) -> list[Turns]:
    most = [*(round(seconds * 1000, 3) for seconds in turns.bounds), None]
    return [Turns(each, count) for each, count in zip(most, turns.counts, strict=True)]


def overview(call: Call) -> ApiAnswer:
    """What there is."""
    return ApiAnswer(200, parts=_overview(call))


def _overview(call: Call) -> Iterator[bytes]:
    found = yield from overview_of(call)
    yield encode(shown_model(found))


def overview_of(call: Call) -> Generator[bytes, None, Overview]:
    """It, counted a part at a time: with each empty one others are to be served."""
    broker = call.broker
    vhosts = call.vhosts()
    census = Census()
    for _ in census.count(vhosts):
        yield b""
    own = None if call.watches else call.identity.name
    metrics = {name: adapter.metrics for name, adapter in broker.adapters.items()}
    metrics["http"] = broker.http
    return Overview(
        version=__version__,
        state="running" if broker.block_reason is None else "blocked",
        uptime_ms=broker.elapsed_ms - call.state.began_at,
        turns=_turns(broker.timings.turns),
        alarms=alarms_of(call),
        protocols=[_protocol(name, each) for name, each in sorted(metrics.items())],
        vhosts=len(vhosts),
        exchanges=census.exchanges,
        queues=census.queues,
        streams=census.streams,
        groups=census.groups,
        connections=sum(
            each.login is not None and own in (None, each.identity.name)
            for each in broker.connections
        ),
        consumers=census.consumers,
        messages_ready=census.ready,
        messages_unsettled=census.unsettled,
        messages_delayed=census.delayed,
        records=census.records,
        retained_messages=census.retained,
    )


def _node(call: Call) -> Node:
    broker = call.broker
    return Node(
        name=NODE,
        version=__version__,
        state="running" if broker.block_reason is None else "blocked",
        uptime_ms=broker.elapsed_ms - call.state.began_at,
        process_id=os.getpid(),
        memory_bytes=broker.driver.resident_memory(),
        free_disk_bytes=broker.driver.free_disk(),
        vhosts=len(broker.vhosts),
        connections=sum(each.login is not None for each in broker.connections),
    )


def nodes(call: Call) -> ApiAnswer:
    """All of them: one."""
    return listed(call, [_node(call)], lambda node: node, lambda node: (node.name,))


def show_node(call: Call) -> ApiAnswer:
    """One."""
    name = call.names["node"]
    if name != NODE:
        raise NotFound(f"no node '{name}'")
    return answer(_node(call))


def listeners(call: Call) -> ApiAnswer:
    """All of them."""
    broker = call.broker

    def view(config: ListenerConfig) -> Listener:
        address = broker.listeners.get(config.name, config.address)
        has_websocket = bool(config.websocket)
        return Listener(
            config.name, config.protocol, address, config.tls is not None, has_websocket
        )

    every = broker.config.all_listeners()
    return listed(call, every, view, lambda config: (config.name,))


def _fsync(fsync: Fsync) -> str:
    return f"{fsync.policy}:{fsync.amount}" if fsync.amount else fsync.policy


def _measured(histogram: Histogram) -> Measured:
    return Measured(sum(histogram.counts), round(histogram.sum * 1000, 3))


def _disk(found: StorageFigures) -> Disk:
    return Disk(
        journal_bytes=found.journal_bytes,
        journal_files=found.journal_files,
        segment_bytes=found.segment_bytes,
        segment_files=found.segments,
        writes=_measured(found.writes),
        syncs=_measured(found.syncs),
        batches=sum(found.batches.counts),
        batch_bytes=int(found.batches.sum),
        checkpoints=_measured(found.checkpoints),
        recovery_ms=round(found.recovery_seconds * 1000, 3),
    )


def storage(call: Call) -> ApiAnswer:
    """How it is."""
    broker = call.broker
    kept = broker.storage
    config = broker.config.storage
    figures = kept.figures()
    found = Storage(
        kind="disk" if kept.is_durable else "memory",
        fsync=_fsync(config.fsync) if kept.is_durable else "never",
        directory=str(config.data) if kept.is_durable else "",
        write_batch=kept.write_batch,
        durable_write_batch=kept.durable,
        pending_bytes=kept.pending_bytes,
        pauses=broker.pacing.brief_pauses,
        free_bytes=broker.driver.free_disk(),
        logs=len(kept.log_names()),
        disk=None if figures is None else _disk(figures),
    )
    return answer(found)


def openapi(call: Call) -> ApiAnswer:
    """What this API is, for programs."""
    return ApiAnswer(200, parts=openapi_of(call.state), content_type="application/openapi+json")


def openapi_of(state: ManagementState) -> Iterator[bytes]:
    """The document in parts, empty ones until it is there. Those who ask until then make it
    together."""
    from trivium.management import rest

    while not state.openapi:
        if state.openapi_parts is None:
            state.openapi_parts = document(rest.ENDPOINTS)
        part = next(state.openapi_parts, None)
        if part is None:
            state.openapi = b"".join(state.openapi_made)
            state.openapi_parts = None
            state.openapi_made = []
        else:
            state.openapi_made.append(part)
            yield b""
    yield state.openapi


ENDPOINTS: Final = (
    operation("GET", "openapi.json", openapi, "This document", tags=ANYBODY, result=Table),
    operation("GET", "whoami", whoami, "Who asks", result=Caller),
    operation("GET", "overview", overview, "What there is, in numbers", result=Overview),
    operation("GET", "alarms", alarms, "Alarms", tags=WATCHERS, result=Alarm, is_list=True),
    operation(
        "GET", "listeners", listeners, "Listeners", tags=WATCHERS, result=Listener, is_list=True
    ),
    operation("GET", "nodes", nodes, "Nodes", tags=WATCHERS, result=Node, is_list=True),
    operation("GET", "nodes/{node}", show_node, "A node", tags=WATCHERS, result=Node),
    operation("GET", "storage", storage, "The storage", tags=WATCHERS, result=Storage),
)
