"""The options of ``format("trivium")``, checked once and turned into frozen classes.

Spark hands options over as a map of texts whose names do not care for case. A name that the data
source does not know is an error: a misspelt ``failOnDataLoss`` must not be silently ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from trivium.common.client_tls import ClientTls, TlsError
from trivium.streams.filtering import TopicFilter
from trivium_native.arrow import TYPES
from trivium_spark.errors import OptionError

#: seconds for which a call to the broker is repeated, unless ``retryTimeout`` says otherwise:
#: longer than a broker takes to restart and recover, shorter than a task's own time limit
DEFAULT_RETRY_TIMEOUT: Final = 60.0

#: An offset in ``startingOffsets`` and ``endingOffsets`` that stands for the stream's own bounds.
LATEST: Final = -1
EARLIEST: Final = -2
#: ``startingOffsets`` = ``group``: where the group has got to, EARLIEST where it has not been
COMMITTED: Final = -3

#: longest that a batch waits for ``minOffsetsPerTrigger`` records, unless ``maxTriggerDelay`` says
#: otherwise
DEFAULT_TRIGGER_DELAY: Final = 900.0

#: most messages of a queue that are taken at a time, unless ``maxRecords`` says otherwise, and
#: the most that it may say
DEFAULT_RECORDS: Final = 10_000
MOST_RECORDS: Final = 65_536

#: options that say what is read, of which a read has one
_SELECTIONS: Final = ("stream", "subscribe", "subscribePattern", "assign")

#: options that Spark itself adds to a sink's
_SPARK_SINK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname"})

#: options of a batch query alone
BATCH_OPTIONS: Final = (
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "pushFilters",
)

#: options that say how payloads are decoded
_DECODING: Final = ("decode", "schema", "mode", "columnNameOfCorruptRecord")

#: Options by which ``write_batch`` says what a batch query writes.
PRODUCER_OPTION: Final = "transactionProducer"
NUMBER_OPTION: Final = "transactionNumber"

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
class Selection:
    """What is read: streams by their names, all whose names match a pattern, or some partitions.

    ``partitions`` are those of each stream, where not all are read.
    """

    streams: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: Mapping[str, frozenset[int]] | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start or end reading: at one end of each stream, or at an offset per partition.

    ``offsets`` maps (stream, partition) to an offset, LATEST or EARLIEST; partitions that it does
    not name are at ``otherwise``, which may be COMMITTED. ``times``, milliseconds since the epoch,
    stand for the first record that arrived then or later, ``time`` for that of all partitions.
    Where there is none, that is an error if ``is_strict``, and LATEST otherwise. ``option`` is the
    one that gave a number to each partition, if it was so.
    """

    otherwise: int
    offsets: Mapping[StreamPartition, int] = field(default_factory=dict)
    times: Mapping[StreamPartition, int] = field(default_factory=dict)
    time: int | None = None
    is_strict: bool = False
    option: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a micro-batch reads: at most so many records, and about so many bytes.

    It begins when there are ``min_offsets`` records, or ``max_delay`` seconds after the one before.
    None stands for no limit.
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay: float = DEFAULT_TRIGGER_DELAY


@dataclass(frozen=True, slots=True)
class Division:
    """Into how many tasks a read is divided: at least so many, none of more records than that.

    None: one for each partition of a stream.
    """

    min_partitions: int | None = None
    max_records: int | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How payloads are decoded: ``form`` is text, json or avro, ``schema`` that of the option.

    What is bad ends the query if ``is_strict``, and stands in ``corrupt_column`` otherwise.
    """

    form: str
    schema: str | None
    is_strict: bool
    corrupt_column: str

    @property
    def what(self) -> str:
        """What a payload should be."""
        return {
            "text": "text in UTF-8",
            "json": "JSON of this schema",
            "avro": "datum of this schema of Avro",
        }[self.form]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read."""

    access: Access
    selection: Selection
    start: Position
    end: Position
    fail_on_data_loss: bool
    limits: Limits
    division: Division
    group: str | None
    retry_timeout: float
    #: whether Spark leaves filters to a batch query
    push_filters: bool = False
    #: an MQTT filter: the broker hands over the records of these topics alone
    topic_filter: str | None = None
    #: how payloads are decoded, if they are
    decoding: Decoding | None = None


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a read of a queue; at most ``max_records`` messages are taken at a time."""

    access: Access
    queue: str
    max_records: int
    retry_timeout: float
    decoding: Decoding | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write: to a stream, to a queue, or (where both are None) to an exchange.

    ``topic`` is the topic of the rows that have none of their own. ``transaction`` is what a batch
    query writes, by producer and number; None where that is its own.
    """

    access: Access
    exchange: str
    stream: str | None
    queue: str | None
    topic: str | None
    exactly_once: bool
    retry_timeout: float
    transaction: tuple[str, int] | None = None

    @property
    def target(self) -> str:
        """What all rows go to, such as ``queue 'q'``; "" where that is an exchange."""
        if self.stream is not None:
            return f"stream {self.stream!r}"
        return "" if self.queue is None else f"queue {self.queue!r}"


def parse_read_options(options: Mapping[str, str], is_streaming: bool) -> ReadOptions:
    """Options for ``readStream`` or ``read``. Raises OptionError."""
    known = [*_ACCESS, *_SELECTIONS, *_positions("starting"), "startingOffsetsByTimestampStrategy"]
    known += ["failOnDataLoss", "retryTimeout", "group", "minPartitions", "maxRecordsPerPartition"]
    known += ["topicFilter", *_DECODING]
    if is_streaming:
        known += ["maxOffsetsPerTrigger", "maxBytesPerTrigger"]
        known += ["minOffsetsPerTrigger", "maxTriggerDelay"]
    else:
        known += BATCH_OPTIONS
    values = _known_options(options, known, frozenset())
    selection = _selection(values)
    start = _position(values, "starting", "latest" if is_streaming else "earliest", selection)
    end = _position(values, "ending", "latest", selection)
    if not is_streaming:
        _refuse("startingOffsets", start, LATEST, "latest")
        _refuse("endingOffsets", end, EARLIEST, "earliest")
    group = _optional(values, "group")
    if start.otherwise == COMMITTED and group is None:
        raise OptionError("option startingOffsets is group, which needs option group")
    if group is not None and not is_streaming and start.otherwise != COMMITTED:
        raise OptionError(
            "option group: a batch query commits nothing; it takes a group for startingOffsets"
            " = group only"
        )
    return ReadOptions(
        access=_access(values),
        selection=selection,
        start=start,
        end=end,
        fail_on_data_loss=_boolean(values, "failOnDataLoss", True),
        limits=_limits(values),
        division=Division(
            _positive(values, "minPartitions", "tasks"),
            _positive(values, "maxRecordsPerPartition", "records"),
        ),
        group=group,
        retry_timeout=_seconds(values, "retryTimeout", DEFAULT_RETRY_TIMEOUT),
        push_filters=_boolean(values, "pushFilters", False),
        topic_filter=_topic_filter(values),
        decoding=_decoding(values),
    )


def parse_queue_options(options: Mapping[str, str]) -> QueueOptions:
    """Options for a read of a queue. Raises OptionError."""
    known = [*_ACCESS, "queue", "maxRecords", "retryTimeout", *_DECODING]
    values = _known_options(options, known, frozenset())
    most = _positive(values, "maxRecords", "messages") or DEFAULT_RECORDS
    if most > MOST_RECORDS:
        raise OptionError(f"option maxRecords is at most {MOST_RECORDS}")
    return QueueOptions(
        access=_access(values),
        queue=_required(values, "queue"),
        max_records=most,
        retry_timeout=_seconds(values, "retryTimeout", DEFAULT_RETRY_TIMEOUT),
        decoding=_decoding(values),
    )


def _topic_filter(values: dict[str, str]) -> str | None:
    text = values.get("topicFilter")
    if text is not None:
        try:
            TopicFilter(text)
        except ValueError as error:
            raise OptionError(f"option topicFilter is no topic filter of MQTT: {error}") from None
    return text


def _decoding(values: dict[str, str]) -> Decoding | None:
    given = [name for name in _DECODING if name in values]
    if not given:
        return None
    if "decode" not in values:
        raise OptionError(f"option {given[0]} needs option decode")
    form = values["decode"].strip().lower()
    if form not in ("text", "json", "avro"):
        raise OptionError("option decode is text, json or avro")
    mode = values.get("mode", "PERMISSIVE").strip().upper()
    if mode not in ("PERMISSIVE", "FAILFAST"):
        raise OptionError("option mode is PERMISSIVE or FAILFAST")
    if form == "text" and "schema" in values:
        raise OptionError("option schema: text has none")
    if form == "avro":
        _required(values, "schema")
    column = values.get("columnNameOfCorruptRecord", "_corrupt_record")
    if column == "data" or column in TYPES or "`" in column:
        raise OptionError(f"option columnNameOfCorruptRecord: {column} is another column")
    return Decoding(form, _optional(values, "schema"), mode == "FAILFAST", column)


def _positions(which: str) -> list[str]:
    return [f"{which}Offsets", f"{which}OffsetsByTimestamp", f"{which}Timestamp"]


def _limits(values: dict[str, str]) -> Limits:
    limits = Limits(
        _positive(values, "maxOffsetsPerTrigger", "records"),
        _positive(values, "maxBytesPerTrigger", "bytes"),
        _positive(values, "minOffsetsPerTrigger", "records"),
        _duration(values, "maxTriggerDelay", DEFAULT_TRIGGER_DELAY),
    )
    if limits.min_offsets is None:
        if "maxTriggerDelay" in values:
            raise OptionError("option maxTriggerDelay needs option minOffsetsPerTrigger")
    elif limits.max_offsets is not None and limits.min_offsets > limits.max_offsets:
        raise OptionError("option minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    return limits


def _selection(values: dict[str, str]) -> Selection:
    given = [name for name in _SELECTIONS if name in values]
    if len(given) != 1:
        raise OptionError(
            f"a read has one of the options {', '.join(_SELECTIONS)}"
            + (f", not {' and '.join(given)}" if given else "")
        )
    name = given[0]
    text = _required(values, name)
    if name == "subscribePattern":
        try:
            return Selection(pattern=re.compile(text))
        except re.error as error:
            raise OptionError(f"option {name} is no regular expression: {error}") from None
    if name == "assign":
        return _assigned(text)
    streams = tuple(each.strip() for each in text.split(","))
    if not all(streams):
        raise OptionError(f"option {name} names one stream, or several parted by commas")
    if len(set(streams)) < len(streams):
        raise OptionError(f"option {name} names a stream twice: {text}")
    return Selection(streams)


def _assigned(text: str) -> Selection:
    try:
        given = json.loads(text)
        partitions = {str(name): frozenset(numbers) for name, numbers in given.items()}
        numbers = [number for each in partitions.values() for number in each]
        is_right = all(type(number) is int and number >= 0 for number in numbers)
    except (AttributeError, TypeError, ValueError):
        is_right = False
    if not is_right or not partitions or not all(partitions.values()):
        raise OptionError('option assign is JSON like {"orders": [0, 1]}')
    return Selection(tuple(partitions), partitions=partitions)


def parse_write_options(options: Mapping[str, str], is_streaming: bool) -> WriteOptions:
    """Options for ``writeStream`` or ``write``. Raises OptionError."""
    known = [*_ACCESS, "exchange", "stream", "queue", "topic", "retryTimeout", "exactlyOnce"]
    values = _known_options(
        options,
        known,
        _SPARK_SINK_OPTIONS,
        inside=() if is_streaming else (PRODUCER_OPTION, NUMBER_OPTION),
    )
    places = [name for name in ("stream", "queue", "exchange") if name in values]
    if len(places) > 1 or ("topic" in values and places not in ([], ["exchange"])):
        raise OptionError("a sink publishes to a stream, to a queue, or by topics to an exchange")
    return WriteOptions(
        access=_access(values),
        exchange=values.get("exchange", "amq.topic"),
        stream=_optional(values, "stream"),
        queue=_optional(values, "queue"),
        topic=values.get("topic"),
        exactly_once=_boolean(values, "exactlyOnce", True),
        retry_timeout=_seconds(values, "retryTimeout", DEFAULT_RETRY_TIMEOUT),
        transaction=_transaction(values),
    )


def _transaction(values: dict[str, str]) -> tuple[str, int] | None:
    if PRODUCER_OPTION not in values and NUMBER_OPTION not in values:
        return None
    number = _required(values, NUMBER_OPTION)
    if not (number.isascii() and number.isdigit() and int(number) < 1 << 62):
        raise OptionError(f"option {NUMBER_OPTION} is the number of a transaction")
    return _required(values, PRODUCER_OPTION), int(number)


def _known_options(
    options: Mapping[str, str],
    known: list[str],
    ignored: frozenset[str],
    *,
    inside: Sequence[str] = (),
) -> dict[str, str]:
    """The options by their names. Those that are ``inside`` are not for users."""
    names = {name.lower(): name for name in [*known, *inside]}
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


def _positive(values: dict[str, str], name: str, what: str) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise OptionError(f"option {name} is a number of {what} greater than 0, not {text!r}")
    return int(text)


def _duration(values: dict[str, str], name: str, default: float) -> float:
    """Seconds of a text such as ``15m``."""
    if name not in values:
        return default
    units = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
    found = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|min|h|d)\s*", values[name], re.ASCII)
    if found is None:
        raise OptionError(f"option {name} is a time like 500ms, 30s, 15m, 1h, not {values[name]!r}")
    return int(found[1]) * units[found[2]]


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
    which: str,
    default: Literal["earliest", "latest"],
    selection: Selection,
) -> Position:
    """Where a read starts or ends. A time for all comes before times, and these before offsets."""
    strategy = values.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError("option startingOffsetsByTimestampStrategy is error or latest")
    # As in Kafka's source: where to end may be a time that is still to come.
    is_strict = which == "starting" and strategy == "error"
    ends = {"earliest": EARLIEST, "latest": LATEST}
    time = values.get(f"{which}Timestamp")
    if time is not None:
        if not (time.isascii() and time.isdigit() and int(time) < 1 << 63):
            raise OptionError(f"option {which}Timestamp is in milliseconds since the epoch")
        return Position(ends[default], time=int(time), is_strict=is_strict)
    name = f"{which}OffsetsByTimestamp"
    if name in values:
        times = _by_partition(values[name], name, 0, selection)
        return Position(ends[default], times=times, is_strict=is_strict, option=name)
    name = f"{which}Offsets"
    text = values.get(name, default).strip()
    if which == "starting":
        ends["group"] = COMMITTED
    if text.lower() in ends:
        return Position(ends[text.lower()])
    return Position(ends[default], _by_partition(text, name, EARLIEST, selection), option=name)


def _refuse(name: str, position: Position, where: int, word: str) -> None:
    """Raise OptionError where a batch query is to begin or end at the wrong end of a partition."""
    if where in (position.otherwise, *position.offsets.values()):
        raise OptionError(
            f"option {name} of a batch query is not {word} ({where}): nothing would be read"
        )


def _by_partition(
    text: str, name: str, least: int, selection: Selection
) -> dict[StreamPartition, int]:
    """JSON with a number for each partition: ours, or that of Kafka's source."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        words = "JSON" if least == 0 else "earliest, latest or JSON"
        form = '{"orders/0": 42} or {"orders": {"0": 42}}'
        raise OptionError(f"option {name} is {words} like {form}")
    pairs: list[tuple[str, object]] = []
    for key, value in given.items():
        if isinstance(value, dict):
            pairs += [(f"{key}/{number}", each) for number, each in value.items()]
        else:
            pairs.append((key, value))
    numbers: dict[StreamPartition, int] = {}
    for key, number in pairs:
        partition = parse_partition(key)
        if partition is None or not _selects(selection, partition):
            raise OptionError(f"option {name}: {key!r} is not a partition of the streams read")
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            what = "milliseconds since the epoch" if least == 0 else "an offset, -1 or -2"
            raise OptionError(f"option {name}: {number!r} is not {what}")
        if partition in numbers:
            raise OptionError(f"option {name} names {key} twice")
        numbers[partition] = number
    return numbers


def _selects(selection: Selection, partition: StreamPartition) -> bool:
    """Whether a partition may be one of those that are read."""
    stream, number = partition
    if selection.pattern is not None:
        return selection.pattern.fullmatch(stream) is not None
    if selection.partitions is not None:
        return number in selection.partitions.get(stream, ())
    return stream in selection.streams


def parse_partition(text: str) -> StreamPartition | None:
    """Read ``stream/partition``; None when the text is not of that form."""
    stream, _, number = text.rpartition("/")
    if not stream or not (number.isascii() and number.isdigit()) or len(number) > 9:
        return None
    return stream, int(number)


def format_partition(partition: StreamPartition) -> str:
    """``stream/partition``, as in offsets and options."""
    return f"{partition[0]}/{partition[1]}"
