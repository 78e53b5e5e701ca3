"""What a stream keeps and how: its arguments and the policy that applies to it.

An argument is written ``x-max-age``, its policy key ``max-age``. Of limits that both give the
smaller one holds, as in RabbitMQ; otherwise the argument does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trivium.errors import PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.settings import (
    ARGUMENTS,
    MAX_MILLISECONDS,
    MAX_NODES,
    QUEUE_TYPE,
    STREAM,
    check_names,
    check_number,
    check_value,
)
from trivium.streams.compression import CODECS
from trivium.streams.record_layout import CODEC_NONE

MAX_AGE: Final = "max-age"
COMPRESSION: Final = "compression"
CLEANUP_POLICY: Final = "cleanup-policy"
TOMBSTONE_RETENTION: Final = "tombstone-retention"

_CLEANUP_POLICIES: Final = ("delete", "compact")

#: Readers that are less than this behind learn that a key is gone.
_TOMBSTONE_RETENTION_MS: Final = 24 * 3600 * 1000

#: other limits: their largest values; the smallest is 1
_LIMITS: Final = {"max-length": 1 << 62, "max-length-bytes": 1 << 62}

#: What a policy for streams may set.
POLICY_KEYS: Final = frozenset(_LIMITS) | {
    MAX_AGE,
    COMPRESSION,
    CLEANUP_POLICY,
    TOMBSTONE_RETENTION,
}

#: Arguments that RabbitMQ has for its own streams: their segments and their cluster.
_IGNORED: Final = {
    "stream-max-segment-size-bytes": (1, 3_000_000_000),
    "stream-filter-size-bytes": (16, 255),
    "initial-cluster-size": (1, MAX_NODES),
}

#: RabbitMQ's units of an age, in seconds. A year has 365 days, a month 30.
_UNITS: Final = {
    "Y": 365 * 24 * 3600,
    "M": 30 * 24 * 3600,
    "D": 24 * 3600,
    "h": 3600,
    "m": 60,
    "s": 1,
}
_AGE: Final = re.compile(r"([0-9]{1,15})([YMDhms])")


class StreamSettings:
    """The values in force for one stream; -1 where there is no limit."""

    def __init__(self) -> None:
        #: milliseconds
        self.max_age = -1
        #: records and bytes of each partition
        self.max_length = -1
        self.max_length_bytes = -1
        #: of record batches to come
        self.codec = CODEC_NONE
        #: keep the last record of each key, and tombstones for so many milliseconds
        self.is_compacted = False
        self.tombstone_retention = _TOMBSTONE_RETENTION_MS


def parse_age(value: HeaderValue, what: str) -> int:
    """An age in milliseconds: a number of them, or RabbitMQ's form such as ``7D`` and ``12h``.

    Raises PreconditionFailed, naming ``what``.
    """
    age = 0
    if isinstance(value, str):
        matched = _AGE.fullmatch(value)
        if matched is not None:
            age = int(matched.group(1)) * _UNITS[matched.group(2)] * 1000
    elif isinstance(value, int) and not isinstance(value, bool):
        age = value
    if not 0 < age <= MAX_MILLISECONDS:
        raise PreconditionFailed(
            f"invalid {what}: milliseconds, or a number with a unit of Y, M, D, h, m or s,"
            " up to 100 years, are needed"
        )
    return age


def check_stream_value(key: str, value: HeaderValue, what: str) -> None:
    """Raise PreconditionFailed unless ``value`` may be given for ``key`` (without ``x-``)."""
    largest = _LIMITS.get(key)
    if largest is not None:
        check_number(value, (1, largest), what)
    elif key in (MAX_AGE, TOMBSTONE_RETENTION):
        parse_age(value, what)
    elif key == CLEANUP_POLICY:
        if value not in _CLEANUP_POLICIES:
            raise PreconditionFailed(f"invalid {what}: delete and compact are known")
    elif key == COMPRESSION:
        if not isinstance(value, str) or value not in CODECS:
            raise PreconditionFailed(f"invalid {what}: {', '.join(CODECS)} are known")
    else:
        raise PreconditionFailed(f"invalid {what}: it is not supported for a stream")


def check_stream_arguments(arguments: Mapping[str, HeaderValue], what: str) -> None:
    """Raise PreconditionFailed for arguments of a stream that would not be honoured.

    What is unknown is no matter: it is for others.
    """
    check_names(arguments, what, STREAM)
    for name, value in arguments.items():
        what_of = f"arg '{name}' for {what}"
        if name == QUEUE_TYPE:
            if value != STREAM:
                raise PreconditionFailed(f"invalid {what_of}: it must be 'stream'")
        elif name == "x-queue-leader-locator":
            check_value(name[2:], value, what_of)
        elif name[2:] in _IGNORED:
            check_number(value, _IGNORED[name[2:]], what_of)
        elif name in ARGUMENTS[STREAM]:
            check_stream_value(name[2:], value, what_of)


def stream_settings_of(
    arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> StreamSettings:
    """The values in force for a stream with these (checked) arguments under this policy.

    The policy may have been written for queues too; what it says that a stream cannot do is left.
    """
    found = StreamSettings()
    found.is_compacted = _own_or(CLEANUP_POLICY, arguments, policy) == "compact"
    if found.is_compacted:
        age = _own_or(TOMBSTONE_RETENTION, arguments, policy)
        if age is not None:
            found.tombstone_retention = parse_age(age, TOMBSTONE_RETENTION)
    else:
        _set_limits(found, arguments, policy)
    codec = _own_or(COMPRESSION, arguments, policy)
    if isinstance(codec, str):
        found.codec = CODECS[codec]
    return found


def _set_limits(
    found: StreamSettings, arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> None:
    found.max_length = _limit("max-length", arguments, policy)
    found.max_length_bytes = _limit("max-length-bytes", arguments, policy)
    for value in (arguments.get("x-" + MAX_AGE), policy.get(MAX_AGE)):
        if value is not None:
            age = parse_age(value, MAX_AGE)
            found.max_age = age if found.max_age < 0 else min(age, found.max_age)


def _own_or(
    key: str, arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> HeaderValue:
    return arguments.get("x-" + key, policy.get(key))


def _limit(
    key: str, arguments: Mapping[str, HeaderValue], policy: Mapping[str, HeaderValue]
) -> int:
    limit = -1
    for value in (arguments.get("x-" + key), policy.get(key)):
        # A queue may have a limit of 0; a stream always keeps its newest batch.
        if isinstance(value, int):
            limit = max(value, 1) if limit < 0 else min(limit, max(value, 1))
    return limit
