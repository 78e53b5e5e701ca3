"""Metrics as a scrape gets them, read with Prometheus's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from trivium.runtime.broker import Broker
from trivium.runtime.exposition import metrics

Key = tuple[str, tuple[tuple[str, str], ...]]


def metrics_text(broker: Broker, path: str = "/metrics", *query: tuple[str, str]) -> str:
    """What a scrape of ``path`` gets."""
    return "".join(metrics(broker, path, list(query)))


def parse(text: str) -> dict[Key, float]:
    """Values by name and labels; each name is described once, and all of its samples follow."""
    values: dict[Key, float] = {}
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in names, f"{family.name} is described twice"
        assert family.documentation, f"{family.name} has no help"
        assert family.type != "unknown", f"{family.name} has no type"
        names.add(family.name)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
    return values
