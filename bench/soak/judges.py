"""What a soak is judged by: figures in, verdicts out."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: The share of the time that is the warm-up, and that of each of the two windows that are compared.
WARM_UP: Final = 0.2
WINDOW: Final = 0.1
#: How much more memory there may be in the last window than in the first one after the warm-up.
GROWTH: Final = 0.05
#: The same of what is shorter than so many seconds: its warm-up has not seen each kind of request.
SHORT: Final = 60.0
SHORT_GROWTH: Final = 0.1
#: How much more disk, and bytes besides: journal and segments go to and fro between checkpoints.
DISK_GROWTH: Final = 0.25
DISK_SLACK: Final = 64 << 20
#: What no promise allows, by name in a report.
_WRONG: Final = ("lost", "duplicates", "ghosts", "unknown", "unanswered")
_SERIOUS: Final = re.compile(r"(^|\s)(ERROR|CRITICAL)\s|^Traceback ", re.MULTILINE)
_SHOWN: Final = 300

#: What was measured, and when: seconds since the begin of the load.
Series = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """What a judge says."""

    judge: str
    is_kept: bool
    text: str


def judge_promises(name: str, report: Mapping[str, Any], *, is_lossy: bool = False) -> Verdict:
    """Whether all came that must, and nothing that must not.

    ``is_lossy`` is of roads that may lose messages. Where nothing was acknowledged nothing was
    verified.
    """
    wrong = [what for what in _WRONG if not (is_lossy and what in ("lost", "unanswered"))]
    broken = [f"{report[what]} {what}" for what in wrong if report.get(what)]
    broken += [f"{who} lost {', '.join(gaps)}" for who, gaps in report["gaps"].items() if broken]
    if not report["acknowledged"]:
        broken.append("nothing was acknowledged, so nothing is verified")
    figures = f"{report['acknowledged']:,} acknowledged, {report['delivered']:,} delivered"
    return Verdict(name, not broken, "; ".join(broken) or figures)


def median_between(series: Series, begin: float, end: float) -> float | None:
    """The median of what was measured in this time; None where nothing was."""
    found = [value for at, value in series if begin <= at <= end]
    return statistics.median(found) if found else None


def judge_growth(name: str, series: Series, seconds: float) -> Verdict:
    """Whether the median of the last tenth of the time is hardly above that after the warm-up."""
    allowed = GROWTH if seconds >= SHORT else SHORT_GROWTH
    begin = seconds * WARM_UP
    before = median_between(series, begin, begin + seconds * WINDOW)
    after = median_between(series, seconds * (1 - WINDOW), seconds)
    if not before or after is None:
        return Verdict(name, False, "was not measured")
    growth = after / before - 1
    text = f"{before:,.0f} after the warm-up, {after:,.0f} at the end: {growth:+.1%}"
    return Verdict(name, after <= before * (1 + allowed), text)


def judge_disk(series: Series, seconds: float) -> Verdict:
    """Whether the highest of the last third is hardly above the highest before."""
    turn = seconds * 2 / 3
    before = max((size for at, size in series if at < turn), default=None)
    after = max((size for at, size in series if at >= turn), default=None)
    if before is None or after is None:
        return Verdict("disk", False, "was not measured")
    text = f"at most {before:,.0f} bytes, in the last third {after:,.0f}"
    return Verdict("disk", after <= before * (1 + DISK_GROWTH) + DISK_SLACK, text)


def judge_log(log: str) -> Verdict:
    """Whether the broker has logged no error and no traceback."""
    found = _SERIOUS.search(log)
    if found is None:
        return Verdict("log", True, f"{log.count(chr(10)):,} lines, none of an error")
    return Verdict("log", False, log[found.start() :][:_SHOWN].strip())


def judge_base(before: Mapping[str, int], after: Mapping[str, int]) -> Verdict:
    """Whether there is as much of everything as before the load, or less."""
    more = [
        f"{what}: {count}, then {after[what]}"
        for what, count in before.items()
        if after[what] > count
    ]
    kept = ", ".join(f"{count} {what}" for what, count in after.items())
    return Verdict("as before", not more, "; ".join(more) or kept)


def judge_end(code: int) -> Verdict:
    """Whether the broker has ended as asked."""
    return Verdict("end", code == 0, f"exit code {code}")


def as_text(verdicts: Iterable[Verdict]) -> str:
    """A line for each."""
    return "\n".join(
        f"  {'kept  ' if one.is_kept else 'BROKEN'} {one.judge:24} {one.text}" for one in verdicts
    )
