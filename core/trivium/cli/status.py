"""`trivium status`: a broker in one screen; rates are those of the second that it takes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trivium.cli.control import Api, find_api, run_command
from trivium.cli.tables import print_json, print_lines, print_rows

#: Time between two looks.
SECONDS: Final = 1.0

#: What is shown of a protocol: its column, and the counter that it is the rate of.
_RATES: Final = {
    "in/s": "messages_received",
    "out/s": "messages_sent",
    "bytes_in/s": "bytes_received",
    "bytes_out/s": "bytes_sent",
}
COLUMNS: Final = ("protocol", "connections", *_RATES)
#: What comes and goes of a queue: the counters that a rate is the sum of.
_QUEUE_RATES: Final = {
    "in/s": ("published",),
    "out/s": ("delivered", "delivered_settled", "got", "got_settled"),
}
QUEUE_COLUMNS: Final = (
    *("vhost", "name", "type", "ready", "unsettled", "consumers"),
    *_QUEUE_RATES,
)
GROUP_COLUMNS: Final = ("vhost", "name", "members", "streams", "lag")
#: Queues and groups that are looked at, and that `trivium status` shows.
LARGEST: Final = 10
STATUS_ROWS: Final = 5
#: What should not happen, by the counters of protocols.
_TROUBLE: Final = {
    "messages_unroutable": "unroutable",
    "messages_dropped": "dropped",
    "authentication_failures": "logins failed",
    "protocol_errors": "protocol errors",
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_TIMES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


@dataclass(frozen=True, slots=True)
class Look:
    """A broker at one time."""

    at: float
    overview: Mapping[str, Any]
    storage: Mapping[str, Any]
    listeners: list[Mapping[str, Any]]
    #: those with most messages
    queues: list[Mapping[str, Any]] = field(default_factory=list)
    #: those that are furthest behind
    groups: list[Mapping[str, Any]] = field(default_factory=list)


def look(api: Api) -> Look:
    """How a broker is. Raises ClientError."""
    storage = api.ask("GET", "storage")
    listeners: list[Mapping[str, Any]] = list(api.pages("listeners", {}))
    queues, groups = _largest(api, "queues", "ready"), _largest(api, "groups", "lag")
    overview = api.ask("GET", "overview")
    return Look(time.monotonic(), overview, storage, listeners, queues, groups)


def _largest(api: Api, path: str, field: str) -> list[Mapping[str, Any]]:
    query = {"sort": field, "sort_reverse": "true", "page": "1", "page_size": str(LARGEST)}
    found: list[Mapping[str, Any]] = api.ask("GET", path, query)["items"]
    return found


def run(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    return run_command(options, _run)


def _run(options: argparse.Namespace) -> None:
    """Print how a broker is. Raises ClientError, UsageError."""
    api = find_api(options)
    before = look(api)
    time.sleep(SECONDS)
    now = look(api)
    if options.json:
        print_json(as_json(before, now))
        return
    print_lines(lines_of(before, now))
    print()
    print_rows(shown_rates(before, now), COLUMNS)
    for rows, columns in (
        (busy_queues(before, now), QUEUE_COLUMNS),
        (late_groups(now), GROUP_COLUMNS),
    ):
        if rows:
            print()
            print_rows(rows[:STATUS_ROWS], columns)


def as_json(before: Look, now: Look) -> dict[str, Any]:
    """All that is known of a broker, for programs."""
    rates = list(rates_of(before, now))
    return {
        **now.overview,
        "storage": now.storage,
        "listeners": now.listeners,
        "rates": rates,
        "queues_with_most": queues_of(before, now),
        "groups_with_most_lag": now.groups,
    }


def shown_rates(before: Look, now: Look) -> Iterator[dict[str, Any]]:
    """The same for people."""
    for row in rates_of(before, now):
        bytes_of = {each: size(row[each]) for each in _RATES if each.startswith("bytes")}
        yield {**row, **bytes_of}


def queues_of(before: Look, now: Look) -> list[dict[str, Any]]:
    """Those with most messages, and what came and went in a second between two looks."""
    seconds = max(now.at - before.at, 0.001)
    earlier = {(each["vhost"], each["name"]): each["counters"] for each in before.queues}
    rows: list[dict[str, Any]] = []
    for each in now.queues:
        known = earlier.get((each["vhost"], each["name"]), each["counters"])
        row = dict(each)
        for column, names in _QUEUE_RATES.items():
            new = sum(each["counters"][name] - known[name] for name in names)
            row[column] = round(max(new, 0) / seconds)
        rows.append(row)
    return rows


def busy_queues(before: Look, now: Look) -> list[dict[str, Any]]:
    """Those of them that have any."""
    return [row for row in queues_of(before, now) if row["ready"] or row["unsettled"]]


def late_groups(now: Look) -> list[Mapping[str, Any]]:
    """Groups that are behind."""
    return [row for row in now.groups if row["lag"]]


def rates_of(before: Look, now: Look) -> Iterator[dict[str, Any]]:
    """What each protocol has done in a second between two looks."""
    seconds = max(now.at - before.at, 0.001)
    earlier = {each["name"]: each for each in before.overview["protocols"]}
    for each in now.overview["protocols"]:
        known = earlier.get(each["name"], {})
        found = {"protocol": each["name"], "connections": each["connections"]}
        for column, counter in _RATES.items():
            found[column] = round(max(each[counter] - known.get(counter, 0), 0) / seconds)
        yield found


def lines_of(before: Look, now: Look) -> Iterator[tuple[str, str]]:
    """What is said of a broker, each with its title."""
    about, storage = now.overview, now.storage
    short = [each["resource"] for each in about["alarms"] if each["is_on"]]
    why = f" for {' and '.join(short)}" if short else ""
    state = "running" if about["state"] == "running" else f"publishers wait{why}"
    yield "broker", f"Trivium {about['version']}, {state}, up for {duration(about['uptime_ms'])}"
    for alarm in about["alarms"]:
        yield alarm["resource"], _resource(alarm)
    where = storage["directory"] or "memory"
    waiting = size(storage["pending_bytes"])
    yield "storage", f"{where}, fsync {storage['fsync']}, {waiting} waiting for the disk"
    yield "connections", f"{about['connections']}, consumers {about['consumers']}"
    yield (
        "messages",
        f"{about['messages_ready']} ready, {about['messages_unsettled']} unsettled,"
        f" {about['messages_delayed']} delayed, in {about['queues']} queues",
    )
    yield (
        "streams",
        f"{about['streams']}, records {about['records']}, consumer groups {about['groups']}",
    )
    yield "retained", str(about["retained_messages"])
    trouble = _trouble(before, now)
    if trouble:
        yield "trouble", trouble
    yield "longest turn", _turns(before.overview["turns"], about["turns"])
    for listener in now.listeners:
        tls = ", TLS" if listener["tls"] else ""
        yield f"at {listener['name']}", f"{listener['address']}{tls}"


def _resource(alarm: Mapping[str, Any]) -> str:
    current, limit = alarm["current_bytes"], alarm["limit_bytes"]
    what = "used, at most" if alarm["resource"] == "memory" else "free, at least"
    text = f"{size(current)} {what} {size(limit)}" if limit else f"{size(current)}, no limit"
    return f"ALARM: {text}" if alarm["is_on"] else text


def _trouble(before: Look, now: Look) -> str:
    """What should not happen and has, since the start and lately; "" for nothing."""
    found: list[str] = []
    for counter, name in _TROUBLE.items():
        then, count = (
            sum(each.get(counter, 0) for each in look.overview["protocols"])
            for look in (before, now)
        )
        if count:
            lately = f" ({count - then} lately)" if count > then else ""
            found.append(f"{count} {name}{lately}")
    return ", ".join(found)


def _turns(before: list[Mapping[str, Any]], now: list[Mapping[str, Any]]) -> str:
    new = [
        {**each, "count": each["count"] - earlier["count"]}
        for each, earlier in zip(now, before, strict=True)
    ]
    return f"{_longest(now)} since the start, {_longest(new)} lately"


def _longest(turns: Sequence[Mapping[str, Any]]) -> str:
    """In which bucket the longest is."""
    found = [each["most_ms"] for each in turns if each["count"] > 0]
    if not found:
        return "none"
    if found[-1] is None:
        return "over 10 s"
    return f"at most {found[-1]:g} ms" if found[-1] < 1000 else f"at most {found[-1] / 1000:g} s"


def size(number: int) -> str:
    """Bytes for people."""
    if number < 0:
        return "unknown"
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def duration(milliseconds: int) -> str:
    """A time for people: its two largest units."""
    parts: list[str] = []
    for unit, name in _TIMES:
        number, milliseconds = divmod(milliseconds, unit)
        if number:
            parts.append(f"{number} {name}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"
