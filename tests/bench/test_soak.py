"""What judges a soak: each judge is seen to say no."""

from __future__ import annotations

from typing import Any

import pytest

from bench.soak import judges
from bench.soak.__main__ import as_text, main
from bench.soak.accounts import Account
from bench.soak.judges import Verdict

SECONDS = 1000.0
KEPT: dict[str, Any] = {
    "acknowledged": 5,
    "delivered": 5,
    "lost": 0,
    "duplicates": 0,
    "unknown": 0,
    "gaps": {},
}


def account(*, is_exact: bool = False) -> Account:
    """Five messages are acknowledged, and have come."""
    made = Account("kind", is_exact=is_exact)
    for _ in range(5):
        number = made.begin()
        made.acknowledged.add(number)
        made.take(made.payload(number))
    return made


def verdict_of(found: Account) -> Verdict:
    return judges.judge_promises("kind", found.report())


def test_what_was_acknowledged_and_has_come_is_kept() -> None:
    found = account()
    assert found.is_complete
    assert verdict_of(found) == Verdict("kind", True, "5 acknowledged, 5 delivered")


def test_what_was_acknowledged_and_has_not_come_is_lost() -> None:
    found = account()
    for _ in range(2):
        found.acknowledged.add(found.begin())
    assert not found.is_complete
    assert verdict_of(found) == Verdict("kind", False, "2 lost; kind lost 5-6")


def test_what_was_not_acknowledged_may_be_lost_and_may_come() -> None:
    found = account()
    found.begin()
    found.take(found.payload(found.begin()))
    assert found.is_complete
    assert verdict_of(found).is_kept


def test_a_copy_says_that_it_may_be_one() -> None:
    found = account()
    found.take(found.payload(3), is_redelivered=True)
    assert verdict_of(found).is_kept
    found.take(found.payload(3))
    assert verdict_of(found) == Verdict("kind", False, "1 duplicates")


def test_where_each_must_come_once_no_copy_is_allowed() -> None:
    found = account(is_exact=True)
    found.take(found.payload(3), is_redelivered=True)
    assert verdict_of(found) == Verdict("kind", False, "1 duplicates")


def test_what_was_withdrawn_must_not_come() -> None:
    found = account()
    number = found.begin()
    found.withdrawn.add(number)
    assert verdict_of(found).is_kept
    found.take(found.payload(number))
    assert verdict_of(found) == Verdict("kind", False, "1 ghosts")


@pytest.mark.parametrize("payload", [b"kind:5", b"other:1", b"kind:x", b"kind", b"", b"kind:-1"])
def test_what_nobody_has_sent_is_unknown(payload: bytes) -> None:
    found = account()
    found.take(payload)
    assert verdict_of(found) == Verdict("kind", False, "1 unknown")


def test_where_nothing_was_acknowledged_nothing_is_verified() -> None:
    assert not verdict_of(Account("kind")).is_kept


@pytest.mark.parametrize("what", ["lost", "duplicates", "unknown", "unanswered"])
def test_loads_are_judged_by_the_same_names(what: str) -> None:
    assert judges.judge_promises("load", KEPT).is_kept
    found = judges.judge_promises("load", KEPT | {what: 3})
    assert found == Verdict("load", False, f"3 {what}")
    is_kept = judges.judge_promises("load", KEPT | {what: 3}, is_lossy=True).is_kept
    assert is_kept == (what in ("lost", "unanswered")), "at QoS 0 messages may be lost, no more"


def rising(growth: float) -> list[tuple[float, float]]:
    """One value until the warm-up is over, and another at the end; both with outliers."""
    found = [(float(at), 100.0) for at in range(900)]
    found += [(float(at), 100.0 * (1 + growth)) for at in range(900, 1001)]
    return [(at, value * 9 if at % 10 == 5 else value) for at, value in found]


@pytest.mark.parametrize(("growth", "is_kept"), [(-0.3, True), (0.049, True), (0.051, False)])
def test_memory_grows_by_no_more_than_allowed(growth: float, is_kept: bool) -> None:
    found = judges.judge_growth("memory", rising(growth), SECONDS)
    assert found.is_kept == is_kept
    assert (
        found.text == f"100 after the warm-up, {100 * (1 + growth):,.0f} at the end: {growth:+.1%}"
    )


def test_what_grows_before_the_warm_up_is_over_is_not_counted() -> None:
    series = [(float(at), min(at, 200) * 5.0 + 1) for at in range(1001)]
    assert judges.judge_growth("memory", series, SECONDS).is_kept


@pytest.mark.parametrize(
    ("seconds", "growth", "is_kept"),
    [(60, 0.049, True), (60, 0.051, False), (50, 0.09, True), (50, 0.11, False)],
)
def test_in_less_than_a_minute_memory_may_grow_more(
    seconds: float, growth: float, is_kept: bool
) -> None:
    series = [(at * seconds / SECONDS, value) for at, value in rising(growth)]
    assert judges.judge_growth("memory", series, seconds).is_kept == is_kept


@pytest.mark.parametrize("series", [[], [(250.0, 1.0)], [(950.0, 1.0)]])
def test_what_was_not_measured_is_not_kept(series: list[tuple[float, float]]) -> None:
    assert not judges.judge_growth("memory", series, SECONDS).is_kept
    assert not judges.judge_disk(series, SECONDS).is_kept


def test_disk_may_go_to_and_fro_and_not_up() -> None:
    size = 1 << 30
    saw = [(float(at), float(size * (1 + at % 10))) for at in range(1001)]
    assert judges.judge_disk(saw, SECONDS).is_kept
    up = [(at, value + size * at) for at, value in saw]
    assert not judges.judge_disk(up, SECONDS).is_kept


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30 ERROR trivium.runtime: it broke",
        "2026-11-30 CRITICAL trivium.runtime: internal error",
        "Traceback (most recent call last):",
    ],
)
def test_an_error_in_the_log_is_shown(line: str) -> None:
    calm = "2026-11-30 INFO trivium: Trivium\n2026-11-30 WARNING trivium: no ERRORS so far\n"
    assert judges.judge_log(calm).is_kept
    found = judges.judge_log(calm + line + "\n  more\n")
    assert (found.is_kept, found.text.split("\n")[0]) == (False, line.removeprefix("2026-11-30 "))


def test_of_nothing_there_is_more_than_before() -> None:
    before = {"sockets": 3, "queues": 2}
    assert judges.judge_base(before, {"sockets": 3, "queues": 1}).is_kept
    found = judges.judge_base(before, {"sockets": 4, "queues": 2})
    assert (found.is_kept, found.text) == (False, "sockets: 3, then 4")


def test_the_broker_ends_as_asked() -> None:
    assert judges.judge_end(0).is_kept
    assert not judges.judge_end(74).is_kept


def test_a_report_names_what_was_broken() -> None:
    report = {
        "seconds": 60.0, "seed": 7, "is_compiled": True, "commit": "abc", "disturbances": 3,
        "verdicts": [
            {"judge": "log", "is_kept": True, "text": "calm"},
            {"judge": "disk", "is_kept": False, "text": "too much"},
        ],
    }  # fmt: skip
    first, kept, broken = as_text(report).split("\n")
    assert first == "60 s, seed 7, compiled, abc, 3 times all connections of a door reset"
    assert kept.split() == ["kept", "log", "calm"]
    assert broken.split() == ["BROKEN", "disk", "too", "much"]


@pytest.mark.parametrize("seconds", ["0", "-1", "x"])
def test_what_cannot_be_asked_for_is_refused(seconds: str) -> None:
    with pytest.raises(SystemExit) as error:
        main([seconds])
    assert error.value.code == 2
