"""Arguments and policy keys of streams."""

from __future__ import annotations

import pytest

from trivium.errors import PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import (
    MAX_MILLISECONDS,
    STREAM,
    check_arguments,
    check_queue_arguments,
)
from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from trivium.streams.settings import parse_age, stream_settings_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("90m", 5400),
        ("1h", 3600),
        ("7D", 604_800),
        ("2M", 5_184_000),
        ("1Y", 31_536_000),
    ],
)
def test_an_age_has_the_units_of_rabbitmq(text: str, seconds: int) -> None:
    assert parse_age(text, "x") == seconds * 1000


def test_a_number_is_an_age_in_milliseconds() -> None:
    assert parse_age(1500, "x") == 1500


@pytest.mark.parametrize(
    "value",
    [
        *("", "h", "1", "1 h", "1H", "-1h", "1.5h", "1h ", "0s", "101Y", "9" * 5000 + "s", "١h"),
        *(0, -1, True, 1.5, None, MAX_MILLISECONDS + 1, b"1h"),
    ],
)
def test_other_ages_are_refused(value: HeaderValue) -> None:
    with pytest.raises(PreconditionFailed, match="max-age"):
        parse_age(value, "max-age")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-age": "1x"},
        {"x-max-length": 0},
        {"x-max-length": "5"},
        {"x-max-length-bytes": True},
        {"x-max-length-bytes": 1 << 63},
        {"x-compression": "gzip"},
        {"x-compression": 1},
        {"x-compression": ["lz4"]},
        {"x-cleanup-policy": "both"},
        {"x-cleanup-policy": True},
        {"x-tombstone-retention": "soon"},
        {"x-message-ttl": 5},
        {"x-queue-type": "quorum"},
    ],
)
def test_arguments_that_would_not_be_honoured_are_refused(
    arguments: dict[str, HeaderValue],
) -> None:
    with pytest.raises(PreconditionFailed, match=next(iter(arguments))):
        check_arguments(arguments, "s", STREAM)


def test_unknown_arguments_are_for_others() -> None:
    check_arguments({"max-age": "1h", "x-unheard-of": 1}, "s", STREAM)


def test_a_queue_does_not_have_the_arguments_of_streams() -> None:
    with pytest.raises(PreconditionFailed, match="a classic queue does not have it"):
        check_queue_arguments({"x-compression": "lz4"}, "queue 'q'", True)


def test_without_arguments_and_policy_there_is_no_limit() -> None:
    found = stream_settings_of({}, {})
    assert (found.max_age, found.max_length, found.max_length_bytes) == (-1, -1, -1)


@pytest.mark.parametrize(("own", "policy"), [("1h", "2h"), ("2h", 3_600_000), (3_600_000, "1D")])
def test_of_two_ages_the_smaller_one_holds(own: HeaderValue, policy: HeaderValue) -> None:
    assert stream_settings_of({"x-max-age": own}, {"max-age": policy}).max_age == 3_600_000


def test_of_two_lengths_the_smaller_one_holds() -> None:
    found = stream_settings_of(
        {"x-max-length": 5, "x-max-length-bytes": 100}, {"max-length": 7, "max-length-bytes": 50}
    )
    assert (found.max_length, found.max_length_bytes) == (5, 50)


def test_a_policy_for_queues_too_may_have_a_length_of_0() -> None:
    assert stream_settings_of({}, {"max-length": 0, "message-ttl": 5}).max_length == 1


def test_the_compression_of_the_argument_goes_before_that_of_the_policy() -> None:
    assert stream_settings_of({}, {}).codec == CODEC_NONE
    assert stream_settings_of({}, {"compression": "lz4"}).codec == CODEC_LZ4
    given = {"x-compression": "zstd"}
    assert stream_settings_of(given, {"compression": "lz4"}).codec == CODEC_ZSTD
    assert stream_settings_of({"x-compression": "none"}, {"compression": "lz4"}).codec == CODEC_NONE


def test_a_stream_is_compacted_by_argument_or_policy() -> None:
    assert not stream_settings_of({}, {}).is_compacted
    found = stream_settings_of({}, {"cleanup-policy": "compact", "tombstone-retention": "1h"})
    assert (found.is_compacted, found.tombstone_retention) == (True, 3_600_000)
    assert stream_settings_of({}, {"cleanup-policy": "compact"}).tombstone_retention == 86_400_000
    given = {"x-cleanup-policy": "delete"}
    assert not stream_settings_of(given, {"cleanup-policy": "compact"}).is_compacted


def test_a_compacted_stream_has_no_limits() -> None:
    given = {"x-cleanup-policy": "compact", "x-max-age": "1h", "x-max-length": 5}
    found = stream_settings_of(given, {"max-length-bytes": 7})
    assert (found.max_age, found.max_length, found.max_length_bytes) == (-1, -1, -1)
