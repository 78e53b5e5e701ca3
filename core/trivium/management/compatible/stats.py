"""Figures with their rates and, where the query asks for them, their histories.

``lengths_age`` and ``lengths_incr`` are the seconds of the history of how many messages there are,
and of its steps; ``msg_rates_age`` and ``msg_rates_incr``, ``data_rates_age`` and
``data_rates_incr`` those of messages and of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from trivium.management.calls import BadRequest
from trivium.management.figures import LENGTHS, Figures
from trivium.management.sampling import Series, history

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: What finds a value by a thing and its figures.
FigureOf = Callable[[object, Figures], object]

#: What paths of figures are made of.
_MESSAGES: Final = "message_stats."
_DETAILS: Final = "_details"
_RATE: Final = f"{_DETAILS}.rate"
#: Seconds of the longest history, as of the longest that is kept elsewhere.
MAX_AGE: Final = 86_400


class Stats:
    """Shows figures to one caller."""

    def __init__(self, call: Call) -> None:
        self._sampler = call.state.sampler
        self._sampler.asked()
        self._lengths = _asked(call, "lengths")
        self._messages = _asked(call, "msg_rates")
        self._bytes = _asked(call, "data_rates")
        self._has_history = bool(self._lengths or self._messages or self._bytes)

    def _series(self, thing: object) -> Series | None:
        return self._sampler.of(thing, self._has_history)

    def lengths(self, thing: object, figures: Figures) -> dict[str, object]:
        """How many messages it has."""
        found = {name: figures[name] for name in LENGTHS}
        return _with_rates(found, self._series(thing), self._lengths)

    def rates(self, thing: object, figures: Figures) -> dict[str, object]:
        """Other figures."""
        return _with_rates(figures, self._series(thing), None)

    def bytes(self, thing: object, figures: Figures) -> dict[str, object]:
        """How many bytes have come and gone."""
        return _with_rates(figures, self._series(thing), self._bytes)

    def message_stats(self, thing: object, figures: Figures) -> dict[str, object]:
        """What became of messages; empty where there were none."""
        found = {name: value for name, value in figures.items() if name not in LENGTHS}
        if not any(found.values()):
            return {}
        return {"message_stats": _with_rates(found, self._series(thing), self._messages)}

    def figure(self, path: str, names: Collection[str]) -> FigureOf | None:
        """What finds a figure of these names, or its rate, as ``lengths`` and ``bytes`` say them,
        by a thing and its figures; None where the path is neither."""
        name = path.removesuffix(_RATE)
        if name not in names:
            return None
        if name == path:
            return lambda _, figures: figures[name]
        return lambda thing, _: self._rate(thing, name)

    def message_figure(self, path: str) -> FigureOf | None:
        """The same of ``message_stats``."""
        inner = path.removeprefix(_MESSAGES)
        name = inner.removesuffix(_RATE)
        if inner == path or "." in name or name.endswith(_DETAILS):
            return None

        def value(thing: object, figures: Figures) -> object:
            if name not in figures or name in LENGTHS:
                return None
            figure = figures[name]
            if not figure and not any(
                count for each, count in figures.items() if each not in LENGTHS
            ):
                return None
            return figure if name == inner else self._rate(thing, name)

        return value

    def _rate(self, thing: object, name: str) -> float:
        series = self._sampler.of(thing)
        return 0.0 if series is None else series.rate(name)

    def idle_since(self, thing: object) -> int:
        """Since when nothing about it has moved, in milliseconds since the epoch; 0 where something
        does, or nobody has looked yet."""
        series = self._series(thing)
        return 0 if series is None else series.idle_since


def _asked(call: Call, name: str) -> tuple[int, int] | None:
    """Age and step of a history; None where it is not asked for. Raises BadRequest."""
    query = call.request.query
    texts = (query.get(f"{name}_age"), query.get(f"{name}_incr"))
    if None in texts:
        return None
    numbers = [int(text[:9]) for text in texts if text and text.isascii() and text.isdecimal()]
    if len(numbers) != 2 or not (0 < numbers[0] <= MAX_AGE and numbers[1] > 0):
        raise BadRequest(f"'{name}_age' and '{name}_incr' are seconds")
    return numbers[0], numbers[1]


def _with_rates(
    figures: Figures, series: Series | None, asked: tuple[int, int] | None
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in figures.items():
        found[name] = value
        details: dict[str, object] = {"rate": 0.0 if series is None else series.rate(name)}
        if asked is not None:
            details |= history(series, name, *asked)
        found[f"{name}_details"] = details
    return found
