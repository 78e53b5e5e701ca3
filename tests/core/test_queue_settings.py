"""Queue arguments: what is refused, and how they combine with a policy."""

from __future__ import annotations

import pytest

from trivium.errors import PreconditionFailed
from trivium.messages.message import AT_MOST_ONCE, HeaderValue
from trivium.queues.arguments import MAX_MILLISECONDS, check_queue_arguments
from trivium.queues.settings import REJECT_PUBLISH, settings_of, stricter


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": "1"}, ": an integer is needed"),
        ({"x-message-ttl": True}, ": an integer is needed"),
        ({"x-message-ttl": 10.0}, ": an integer is needed"),
        ({"x-message-ttl": -1}, "is not in"),
        ({"x-expires": 0}, "is not in"),
        ({"x-max-length": -1}, "is not in"),
        ({"x-max-priority": -1}, "is not in 0..255"),
        ({"x-max-priority": 256}, "is not in 0..255"),
        ({"x-overflow": "explode"}, "\"unsupported overflow 'explode'\""),
        ({"x-overflow": 1}, ": text is needed"),
        ({"x-dead-letter-exchange": 1}, ": text is needed"),
        ({"x-dead-letter-routing-key": "k"}, "no dead letter exchange"),
        (
            {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "é" * 128},
            "it is longer than 255 bytes",
        ),
        ({"x-queue-type": "fancy"}, "\"unsupported queue type 'fancy'\""),
        ({"x-queue-type": "stream"}, "a stream is no queue"),
        ({"x-single-active-consumer": "yes"}, ": a boolean is needed"),
        ({"x-dead-letter-strategy": "at-most-once"}, "a classic queue does not have it"),
        ({"x-queue-type": "quorum", "x-max-priority": 3}, "a quorum queue does not have it"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, HeaderValue], text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        check_queue_arguments(arguments, "queue 'q'", True)


@pytest.mark.parametrize(
    ("durable", "exclusive", "auto_delete", "field"),
    [
        (False, False, False, "non-durable"),
        (True, True, False, "exclusive"),
        (True, False, True, "auto-delete"),
    ],
)
def test_a_quorum_queue_does_not_go_with_its_clients(
    durable: bool, exclusive: bool, auto_delete: bool, field: str
) -> None:
    with pytest.raises(PreconditionFailed, match=f"invalid property '{field}' for queue 'q'"):
        check_queue_arguments(
            {"x-queue-type": "quorum"}, "queue 'q'", durable, exclusive, auto_delete
        )


def test_a_text_that_is_too_long_for_a_key_does_not_count() -> None:
    """A queue may be older than the limit."""
    arguments: dict[str, HeaderValue] = {"x-dead-letter-exchange": "x"}
    for key, expected in (("k" * 255, "k" * 255), ("k" * 65_536, None)):
        arguments["x-dead-letter-routing-key"] = key
        assert settings_of(arguments, {}).dead_letter_routing_key == expected


def test_unknown_arguments_are_for_others() -> None:
    check_queue_arguments({"x-unheard-of": 1, "team": object()}, "queue 'q'", True)


def test_of_two_numbers_the_smaller_one_holds() -> None:
    assert settings_of({"x-max-length": 5}, {"max-length": 9}).max_length == 5
    assert settings_of({"x-max-length": 9}, {"max-length": 5}).max_length == 5
    assert settings_of({}, {"max-length": 5}).max_length == 5
    assert settings_of({}, {}).max_length == -1


def test_of_two_texts_the_argument_holds() -> None:
    found = settings_of({"x-overflow": "reject-publish"}, {"overflow": "drop-head"})
    assert found.overflow == REJECT_PUBLISH


def test_quorum_queues_have_a_delivery_limit_by_default() -> None:
    assert settings_of({"x-queue-type": "quorum"}, {}).delivery_limit == 20
    assert settings_of({"x-queue-type": "quorum", "x-delivery-limit": -1}, {}).delivery_limit == -1
    assert settings_of({}, {}).delivery_limit == -1


def test_delivery_mode_and_defaults() -> None:
    found = settings_of({}, {"delivery": "at-most-once"})
    assert (found.delivery, found.retry_delay_max) == (AT_MOST_ONCE, MAX_MILLISECONDS)


def test_no_consumer_timeout_loses_against_a_limit() -> None:
    """0 is none: any other holds, whichever says it."""
    for own, given in ((0, 500), (500, 0), (500, 900), (900, 500)):
        found = settings_of({"x-consumer-timeout": own}, {"consumer-timeout": given})
        assert found.consumer_timeout == 500
    assert settings_of({"x-consumer-timeout": 0}, {"consumer-timeout": 0}).consumer_timeout == 0
    # Elsewhere 0 is the strictest limit that there is.
    for key in ("message-ttl", "max-length", "max-length-bytes", "delivery-limit"):
        assert stricter(key, 0, 500) == stricter(key, 500, 0) == 0
    assert stricter("delivery-limit", -1, 500) == 500
