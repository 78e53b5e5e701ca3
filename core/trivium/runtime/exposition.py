"""What a scrape gets: the metrics that it asks for, in pieces, between which messages are served.

- `/metrics` has what is of the broker as a whole, and of its protocols.
- `/metrics/per-object`, or `/metrics?per_object=true`, has what is of each queue, stream, user ...
  as well. Their names begin with `trivium_detailed_`, so that no sum counts anything twice.
- `/metrics/detailed?family=NAME&vhost=NAME` has the families alone that it names, and only of these
  virtual hosts; each parameter may come several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trivium.observability.metrics import (
    Metric,
    Objects,
    Room,
    Sample,
    render,
    render_objects,
)
from trivium.observability.process import process_samples
from trivium.runtime.object_samples import FAMILIES
from trivium.runtime.samples import broker_samples

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

_DETAILED: Final = "/metrics/detailed"
_PER_OBJECT: Final = "/metrics/per-object"
#: Where they are.
PATHS: Final = ("/metrics", _PER_OBJECT, _DETAILED)
_LEFT_OUT: Final = (
    Metric("objects_left_out", "gauge", "Objects that are not shown, as max_series has it"),
)
_YES: Final = ("true", "1")
_NO: Final = ("false", "0")


def metrics(broker: Broker, path: str, query: list[tuple[str, str]]) -> Iterator[str]:
    """The metrics that a path and its query ask for. Raises ValueError, at once."""
    config = broker.config.metrics
    families: list[str] = []
    names: list[str] = []
    is_per_object = path == _PER_OBJECT or (path != _DETAILED and config.per_object)
    for name, value in query:
        if name == "per_object" and path == "/metrics":
            if value not in _YES + _NO:
                raise ValueError("per_object is true or false")
            is_per_object = value in _YES
        elif name == "family" and path == _DETAILED:
            if value not in FAMILIES:
                raise ValueError(f"there is no family {value!r}, only {', '.join(FAMILIES)}")
            families.append(value)
        elif name == "vhost" and path != "/metrics":
            names.append(value)
        else:
            raise ValueError(f"there is no parameter {name!r} here")
    if is_per_object:
        families = list(FAMILIES)
    return _pieces(broker, path != _DETAILED, families, names)


def _pieces(broker: Broker, is_whole: bool, families: list[str], names: list[str]) -> Iterator[str]:
    if is_whole:
        protocols = {name: adapter.metrics for name, adapter in broker.adapters.items()}
        yield from render({**protocols, "http": broker.http}, _samples(broker))
    vhosts = [vhost for name, vhost in broker.vhosts.items() if not names or name in names]
    room = Room(broker.config.metrics.max_series)
    wanted = [FAMILIES[name] for name in dict.fromkeys(families)]
    made = [Objects(each.metrics, each.rows(broker, vhosts)) for each in wanted]
    yield from render_objects(made, room)
    if families:
        yield from render_objects([Objects(_LEFT_OUT, [[(0, "", room.left_out)]])], Room(1))


def _samples(broker: Broker) -> Iterator[Sample | None]:
    yield from process_samples()
    yield from broker_samples(broker)
