"""What a stream keeps and how: its arguments and the policy that applies to it.

An argument is written ``x-max-age``, its policy key ``max-age``. Of limits that both give the
smaller one holds, as in RabbitMQ; otherwise the argument does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trivium.errors import INTEGER, TEXT, PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import (
    MAX_MILLISECONDS,
    QUEUE_TYPE,
    STREAM,
    Rule,
    register_arguments,
)
from trivium.streams.compression import CODECS
from trivium.streams.record_layout import CODEC_NONE

MAX_AGE: Final = "max-age"
COMPRESSION: Final = "compression"
CLEANUP_POLICY: Final = "cleanup-policy"
TOMBSTONE_RETENTION: Final = "tombstone-retention"

#: Readers that are less than this behind learn that a key is gone.
_TOMBSTONE_RETENTION_MS: Final = 24 * 3600 * 1000

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


class _Age(Rule):
    """A time as ``parse_age`` reads it."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def check(self, key: str, value: HeaderValue, what: str) -> None:
        parse_age(value, what)


_LENGTH: Final = Rule(INTEGER, (1, 1 << 62))

#: What streams have of their own, without ``x-``; also what a policy for them may set.
STREAM_RULES: Final[Mapping[str, Rule]] = {
    "max-length": _LENGTH,
    "max-length-bytes": _LENGTH,
    MAX_AGE: _Age(),
    COMPRESSION: Rule(TEXT, choices=CODECS),
    CLEANUP_POLICY: Rule(TEXT, choices=("delete", "compact")),
    TOMBSTONE_RETENTION: _Age(),
}
register_arguments(STREAM, {**STREAM_RULES, QUEUE_TYPE[2:]: Rule(TEXT, choices=(STREAM,))})


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
