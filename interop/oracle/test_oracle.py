"""Declarations and errors, reply by reply: Trivium answers as RabbitMQ does.

``cases`` says what is sent. Each difference that there is stands in ``differences.toml``, with its
reason; one that is not there fails, and so does one that is there and has gone.
"""

from __future__ import annotations

import tomllib
from concurrent.futures import Future
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest

from interop.oracle.cases import CASES
from interop.oracle.steps import Case
from interop.oracle.wire import run

_TABLE: Final[list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("differences.toml").read_text(encoding="utf-8")
)["difference"]

#: By the name of a case: RabbitMQ's and Trivium's line, for each that differs.
DIFFERENCES: Final[dict[str, list[tuple[str, str]]]] = {
    name: [(theirs, ours) for theirs, ours in pairs]
    for difference in _TABLE
    for name, pairs in difference["cases"].items()
}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_trivium_answers_as_rabbitmq_does(
    case: Case, amqp_port: int, heard: dict[str, Future[list[str]]], name: str
) -> None:
    answers = run(amqp_port, case.opening, case.steps, name)
    pairs = zip_longest(heard[case.name].result(), answers, fillvalue="")
    differences = [(theirs, ours) for theirs, ours in pairs if theirs != ours]
    assert differences == DIFFERENCES.get(case.name, [])


def test_every_difference_belongs_to_a_case_and_has_a_reason() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert DIFFERENCES.keys() <= {case.name for case in CASES}
    assert all(difference["why"] for difference in _TABLE)
    assert sum(len(difference["cases"]) for difference in _TABLE) == len(DIFFERENCES)
