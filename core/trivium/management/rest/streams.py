"""Streams and their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

from trivium.management.endpoints import ENTERED
from trivium.management.rest.operations import answer, body_of, declared, listed, operation
from trivium.management.rest.schema import About, Count, Name, Table
from trivium.management.values import shown_table
from trivium.observability.api import ApiAnswer
from trivium.security.permissions import CONFIGURE
from trivium.streams.compression import CODECS
from trivium.streams.settings import stream_settings_of
from trivium.streams.stream import MAX_PARTITIONS
from trivium.vhost.extending import add_partitions
from trivium.vhost.policies import STREAMS

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.streams.stream import Partition as CorePartition
    from trivium.streams.stream import Stream as CoreStream
    from trivium.vhost.virtual_host import VirtualHost

_Limit = Annotated[int, About(text="-1 where there is none", least=-1)]
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}


@dataclass(frozen=True, slots=True)
class Retention:
    """What is in force: by the stream's arguments and its policy."""

    max_age_ms: _Limit
    #: of each partition
    max_records: _Limit
    max_bytes: _Limit
    compacts: bool
    tombstones_ms: Annotated[int, About(text="how long tombstones stay that compaction finds")]
    compression: str


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream."""

    vhost: Name
    name: Name
    incarnation: Annotated[str, About(text="another one once it was deleted and declared again")]
    partitions: Count
    records: Count
    published: Annotated[int, About(text="messages that it took since the start", least=0)]
    arguments: Table
    policy: str | None
    operator_policy: str | None
    retention: Retention


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a stream."""

    partition: Count
    first_offset: Annotated[int, About(text="of the oldest record that is kept", least=0)]
    high_watermark: Annotated[int, About(text="after the last that can be read", least=0)]
    next_offset: Annotated[int, About(text="that the next record gets", least=0)]
    records: Count
    appended: Annotated[int, About(text="records since the start", least=0)]
    read: Annotated[int, About(text="records that clients read since the start", least=0)]
    is_compacting: bool


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """A stream that is to be there."""

    partitions: Annotated[int, About(least=1, most=MAX_PARTITIONS)] = 1
    arguments: Annotated[Table, About(text="such as x-max-age, x-max-length-bytes")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Extension:
    """How many partitions a stream is to have."""

    partitions: Annotated[int, About(text="at least those of now", least=1, most=MAX_PARTITIONS)]


_Item = tuple["VirtualHost", "CoreStream"]


def view(item: _Item) -> Stream | None:
    """What is shown of one; None where it is gone."""
    vhost, stream = item
    if stream.is_deleted:
        return None
    policies = vhost.policies.in_force(stream.name, STREAMS)
    settings = stream_settings_of(stream.arguments, policies.definition)
    return Stream(
        vhost=vhost.name,
        name=stream.name,
        incarnation=stream.incarnation,
        partitions=len(stream.partitions),
        records=stream.record_count,
        published=stream.published,
        arguments=shown_table(stream.arguments),
        policy=policies.name,
        operator_policy=policies.operator_name,
        retention=Retention(
            settings.max_age,
            settings.max_length,
            settings.max_length_bytes,
            settings.is_compacted,
            settings.tombstone_retention,
            _CODEC_NAMES[settings.codec],
        ),
    )


def _all(call: Call) -> Iterator[_Item]:
    for vhost in call.vhosts():
        for stream in list(vhost.streams.values()):
            yield vhost, stream


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return listed(call, _all(call), view, lambda item: (item[0].name, item[1].name))


def show(call: Call) -> ApiAnswer:
    """One."""
    vhost = call.vhost
    return answer(view((vhost, vhost.stream(call.names["stream"]))))


def partitions(call: Call) -> ApiAnswer:
    """Those of one."""
    stream = call.vhost.stream(call.names["stream"])

    def view_partition(partition: CorePartition) -> Partition:
        return Partition(
            partition=partition.index,
            first_offset=partition.first_offset,
            high_watermark=partition.high_watermark,
            next_offset=partition.next_offset,
            records=partition.high_watermark - partition.first_offset,
            appended=partition.appended,
            read=partition.records_read,
            is_compacting=not stream.is_deleted and partition.is_compacting,
        )

    every = list(stream.partitions)
    return listed(call, every, view_partition, lambda partition: (f"{partition.index:05}",))


def declare(call: Call) -> None:
    """Have one; one that is there must be the same."""
    wanted = body_of(call, StreamDeclaration)
    vhost = call.vhost
    name = call.names["stream"]
    is_new = name not in vhost.streams
    call.access.require(CONFIGURE, "stream", name)
    vhost.declare_stream(name, wanted.partitions, dict(call.table(wanted.arguments)))
    call.created(is_new)


def _is_there(call: Call) -> bool:
    return call.names["stream"] in call.vhost.streams


def extend(call: Call) -> None:
    """Have more partitions."""
    wanted = body_of(call, Extension)
    name = call.names["stream"]
    call.access.require(CONFIGURE, "stream", name)
    add_partitions(call.vhost, name, wanted.partitions)
    call.gone()


def delete(call: Call) -> None:
    """Delete one with its records."""
    name = call.names["stream"]
    call.access.require(CONFIGURE, "stream", name)
    call.vhost.delete_stream(name)
    call.gone()


_ONE: Final = "vhosts/{vhost}/streams/{stream}"

ENDPOINTS: Final = (
    *declared("stream", (list_all, show, declare, delete), StreamDeclaration, Stream, _is_there),
    operation(
        "GET",
        _ONE + "/partitions",
        partitions,
        "Partitions of a stream",
        result=Partition,
        is_list=True,
    ),
    operation(
        "PUT",
        _ONE + "/partitions",
        extend,
        "Give it more partitions",
        vhost=ENTERED,
        body=Extension,
        statuses=(204,),
    ),
)
