"""The options of ``format("trivium")``, checked once and turned into frozen classes.

Spark hands options over as a map of texts whose names do not care for case. A name that the data
source does not know is an error: a misspelt ``failOnDataLoss`` must not be silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from trivium.common.client_tls import ClientTls, TlsError
from trivium_spark.errors import OptionError

#: seconds for which a call to the broker is repeated, unless ``retryTimeout`` says otherwise:
#: longer than a broker takes to restart and recover, shorter than a task's own time limit
DEFAULT_RETRY_TIMEOUT: Final = 60.0

#: An offset in ``startingOffsets`` and ``endingOffsets`` that stands for the stream's own bounds.
LATEST: Final = -1
EARLIEST: Final = -2

#: options that Spark itself adds to a sink's
_SPARK_SINK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})

#: options of every read and write that say where the broker is, and how to come in
_ACCESS: Final = (
    "url",
    "username",
    "password",
    "passwordFile",
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "tlsServerName",
    "tlsInsecure",
)

#: (stream, partition)
StreamPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Access:
    """Where the broker is, and how to come in. Nothing that is secret is shown."""

    url: str = field(repr=False)
    username: str | None = None
    #: or a token, or an API key
    password: str | None = field(default=None, repr=False)
    #: a file with the same, read again for each connection: a token in it may be renewed
    password_file: str | None = None
    #: how to speak TLS; None is as the URL says
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or end reading: at one end of each stream, or at an offset per partition.

    ``offsets`` maps (stream, partition) to an offset, LATEST or EARLIEST; partitions that it does
    not name are at ``otherwise``.
    """

    otherwise: int
    offsets: Mapping[StreamPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. ``max_offsets_per_trigger`` is None where there is no limit."""

    access: Access
    streams: tuple[str, ...]
    start: Position
    end: Position
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    group: str | None
    retry_timeout: float


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write: to a stream, or (where ``stream`` is None) to an exchange by topic.

    ``topic`` is the topic of the rows that have none of their own. ``exactly_once`` is for
    streaming queries.
    """

    access: Access
    exchange: str
    stream: str | None
    topic: str | None
    exactly_once: bool
    retry_timeout: float


def parse_read_options(options: Mapping[str, str], is_streaming: bool) -> ReadOptions:
    """Options for ``readStream`` or ``read``. Raises OptionError."""
    known = [*_ACCESS, "stream", "startingOffsets", "failOnDataLoss", "retryTimeout"]
    known += ["maxOffsetsPerTrigger", "group"] if is_streaming else ["endingOffsets"]
    values = _known_options(options, known, frozenset())
    streams = tuple(name.strip() for name in _required(values, "stream").split(","))
    if not all(streams):
        raise OptionError("option stream names one stream, or several parted by commas")
    if len(set(streams)) < len(streams):
        raise OptionError(f"option stream names a stream twice: {values['stream']}")
    return ReadOptions(
        access=_access(values),
        streams=streams,
        start=_position(
            values, "startingOffsets", "latest" if is_streaming else "earliest", streams
        ),
        end=_position(values, "endingOffsets", "latest", streams),
        fail_on_data_loss=_boolean(values, "failOnDataLoss", True),
        max_offsets_per_trigger=_positive(values, "maxOffsetsPerTrigger"),
        group=_optional(values, "group"),
        retry_timeout=_seconds(values, "retryTimeout", DEFAULT_RETRY_TIMEOUT),
    )


def parse_write_options(options: Mapping[str, str], is_streaming: bool) -> WriteOptions:
    """Options for ``writeStream`` or ``write``. Raises OptionError."""
    known = [*_ACCESS, "exchange", "stream", "topic", "retryTimeout"]
    known += ["exactlyOnce"] if is_streaming else []
    values = _known_options(options, known, _SPARK_SINK_OPTIONS)
    if "stream" in values and ("exchange" in values or "topic" in values):
        raise OptionError("a sink publishes to a stream, or with a topic to an exchange, not both")
    return WriteOptions(
        access=_access(values),
        exchange=values.get("exchange", "amq.topic"),
        stream=_optional(values, "stream"),
        topic=values.get("topic"),
        exactly_once=is_streaming and _boolean(values, "exactlyOnce", True),
        retry_timeout=_seconds(values, "retryTimeout", DEFAULT_RETRY_TIMEOUT),
    )


def _known_options(
    options: Mapping[str, str], known: list[str], ignored: frozenset[str]
) -> dict[str, str]:
    names = {name.lower(): name for name in known}
    values: dict[str, str] = {}
    for given, value in options.items():
        name = names.get(given.lower())
        if name is not None:
            values[name] = value
        elif given.lower() not in ignored:
            raise OptionError(f"unknown option {given}; the options are {', '.join(sorted(known))}")
    return values


def _required(values: dict[str, str], name: str) -> str:
    value = values.get(name, "").strip()
    if not value:
        raise OptionError(f"option {name} is required")
    return value


def _optional(values: dict[str, str], name: str) -> str | None:
    return _required(values, name) if name in values else None


def parse_access(options: Mapping[str, str]) -> Access:
    """Those options that say where the broker is and how to come in. Raises OptionError."""
    return _access(_known_options(options, list(_ACCESS), frozenset()))


def _access(values: dict[str, str]) -> Access:
    url = _required(values, "url")
    if not url.startswith(("trivium://", "triviums://")):
        # Not shown: it may hold a password.
        raise OptionError("option url is trivium[s]://[user:password@]host[:port][/vhost]")
    if "password" in values and "passwordFile" in values:
        raise OptionError("options password and passwordFile exclude each other")
    return Access(
        url,
        _optional(values, "username"),
        values.get("password"),
        _optional(values, "passwordFile"),
        _tls(values, is_asked=url.startswith("triviums://")),
    )


def _tls(values: dict[str, str], is_asked: bool) -> ClientTls | None:
    given = [name for name in _ACCESS if name.startswith("tls") and name in values]
    if not given:
        return None
    if not is_asked:
        raise OptionError(f"option {given[0]} needs a url that begins with triviums://")
    try:
        return ClientTls(
            ca=values.get("tlsCa", ""),
            certificate=values.get("tlsCertificate", ""),
            key=values.get("tlsKey", ""),
            server_name=values.get("tlsServerName", ""),
            verify=not _boolean(values, "tlsInsecure", False),
        )
    except TlsError as error:
        raise OptionError(f"options of TLS: {error}") from None


def _boolean(values: dict[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return text == "true"


def _positive(values: dict[str, str], name: str) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise OptionError(f"option {name} is a number of records greater than 0, not {text!r}")
    return int(text)


def _seconds(values: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(values.get(name, default))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise OptionError(f"option {name} is a number of seconds up to a day")
    return seconds


def _position(
    values: dict[str, str],
    name: str,
    default: Literal["earliest", "latest"],
    streams: tuple[str, ...],
) -> Position:
    text = values.get(name, default).strip()
    ends = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in ends:
        return Position(ends[text.lower()])
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise OptionError(f'option {name} is earliest, latest or JSON like {{"orders/0": 42}}')
    offsets: dict[StreamPartition, int] = {}
    for key, offset in given.items():
        partition = parse_partition(key)
        if partition is None or partition[0] not in streams:
            raise OptionError(f"option {name}: {key!r} is not a partition of the streams read")
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
            raise OptionError(f"option {name}: {offset!r} is not an offset, -1 or -2")
        offsets[partition] = offset
    return Position(ends[default], offsets)


def parse_partition(text: str) -> StreamPartition | None:
    """Read ``stream/partition``; None when the text is not of that form."""
    stream, _, number = text.rpartition("/")
    if not stream or not (number.isascii() and number.isdigit()) or len(number) > 9:
        return None
    return stream, int(number)


def format_partition(partition: StreamPartition) -> str:
    """``stream/partition``, as in offsets and options."""
    return f"{partition[0]}/{partition[1]}"
