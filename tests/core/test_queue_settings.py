"""Queue arguments: what is refused, and how they combine with a policy."""

from __future__ import annotations

import pytest

from trivium.errors import PreconditionFailed
from trivium.message import AT_MOST_ONCE, HeaderValue
from trivium.queue_settings import (
    MAX_MILLISECONDS,
    REJECT_PUBLISH,
    check_queue_arguments,
    settings_of,
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": "1"}, "a number is needed"),
        ({"x-message-ttl": True}, "a number is needed"),
        ({"x-message-ttl": -1}, "is not in"),
        ({"x-expires": 0}, "is not in"),
        ({"x-max-length": -1}, "is not in"),
        ({"x-max-priority": 0}, "is not in 1..255"),
        ({"x-max-priority": 256}, "is not in 1..255"),
        ({"x-overflow": "explode"}, "is not one of"),
        ({"x-dead-letter-exchange": 1}, "text is needed"),
        ({"x-dead-letter-routing-key": "k"}, "no dead letter exchange"),
        ({"x-queue-type": "fancy"}, r"is not one of \['classic', 'quorum', 'stream'\]"),
        ({"x-queue-type": "stream"}, "a stream is not declared as a queue"),
        ({"x-single-active-consumer": "yes"}, "true or false"),
        ({"x-unheard-of": 1}, "not supported"),
        ({"x-queue-type": "quorum", "x-max-priority": 3}, "of type quorum"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, HeaderValue], text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        check_queue_arguments(arguments, "queue 'q'", True)


def test_a_quorum_queue_must_be_durable() -> None:
    with pytest.raises(PreconditionFailed, match="non-durable"):
        check_queue_arguments({"x-queue-type": "quorum"}, "queue 'q'", False)


def test_arguments_without_meaning_here_are_accepted() -> None:
    check_queue_arguments({"x-queue-mode": "lazy", "other": object()}, "queue 'q'", True)


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
