"""Arguments of queues and streams that RabbitMQ has for its own sake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trivium.errors import PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import STREAM, check_arguments, check_queue_arguments
from trivium_amqp import arguments as amqp_arguments
from trivium_amqp.arguments import IGNORED, IGNORED_LATER

amqp_arguments.register()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-queue-mode": "eager"}, "\"unsupported queue mode 'eager'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
        ({"x-queue-version": "2"}, ": an integer is needed"),
        ({"x-queue-type": "quorum", "x-quorum-initial-group-size": -1}, "-1 is not in"),
        ({"x-queue-type": "quorum", "x-queue-mode": "lazy"}, "a quorum queue does not have it"),
        ({"x-initial-cluster-size": 3}, "a classic queue does not have it"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, HeaderValue], text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        check_queue_arguments(arguments, "queue 'q'", True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-initial-cluster-size": "3"},
        {"x-queue-leader-locator": 1},
        {"x-stream-max-segment-size-bytes": 4_000_000_000},
        {"x-stream-filter-size-bytes": 15},
        {"x-queue-mode": "lazy"},
    ],
)
def test_wrong_values_are_refused_for_a_stream(arguments: dict[str, HeaderValue]) -> None:
    with pytest.raises(PreconditionFailed, match=next(iter(arguments))):
        check_arguments(arguments, "s", STREAM)


def test_they_are_accepted() -> None:
    check_queue_arguments({"x-queue-mode": "lazy", "x-queue-version": 2}, "queue 'q'", True)
    check_arguments(
        {
            "x-queue-type": "stream",
            "x-stream-max-segment-size-bytes": 1000,
            "x-stream-filter-size-bytes": 16,
            "x-initial-cluster-size": 3,
            "x-queue-leader-locator": "client-local",
        },
        "s",
        STREAM,
    )


def test_the_reference_has_every_argument() -> None:
    docs = Path(__file__).parents[2] / "docs"
    (of_queues,) = re.findall(
        r"^- \*\*accepted, without a meaning here\*\*: (.*(?:\n  .*)*)",
        docs.joinpath("amqp.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    (of_streams,) = re.findall(
        r"^- (`x-[^:]*) are accepted and without effect",
        docs.joinpath("streams.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    named = set(re.findall(r"`x-([a-z-]+)`", of_queues + of_streams))
    assert named == {key for rules in IGNORED.values() for key in rules} | IGNORED_LATER.keys()
