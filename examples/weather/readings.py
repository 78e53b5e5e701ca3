"""The data: hourly temperatures of 2010 in two cities, as the package vega_datasets ships them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from vega_datasets import data

#: topic level of each city, and how its file writes a time
CITIES = {"sf": "%Y/%m/%d %H:%M:%S", "seattle": "%Y/%m/%d %H:%M"}

#: the time of the first reading
START = datetime(2010, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reading:
    """One temperature in degrees Fahrenheit. The files' times have no zone: UTC is assumed."""

    city: str
    time: datetime
    temperature: float

    @property
    def topic(self) -> str:
        return f"weather/{self.city}/temperature"

    @property
    def payload(self) -> bytes:
        return json.dumps({"time": self.time.isoformat(), "temperature": self.temperature}).encode()


def readings(days: int | None = None) -> list[Reading]:
    """The readings of both cities by time: of the first ``days``, or all of the year."""
    end = None if days is None else START + timedelta(days=days)
    found = [
        reading
        for city in CITIES
        for reading in _of_city(city)
        if end is None or reading.time < end
    ]
    return sorted(found, key=lambda reading: reading.time)


def _of_city(city: str) -> Iterator[Reading]:
    frame = data.sf_temps.raw() if city == "sf" else data.seattle_temps.raw()
    header, *lines = frame.decode().splitlines()
    columns = header.split(",")
    for line in lines:
        row = dict(zip(columns, line.split(","), strict=True))
        time = datetime.strptime(row["date"], CITIES[city]).replace(tzinfo=UTC)
        yield Reading(city, time, float(row["temp"]))
