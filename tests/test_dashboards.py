"""The Grafana dashboard asks for what the broker has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.core import message
from tests.support.metrics import metrics_text, parse
from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.broker import Broker

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana/trivium.json"
(SCRAPED,) = yaml.safe_load((DEPLOY / "docker/prometheus.yml").read_text())["scrape_configs"]
METRIC = re.compile(r"\b(?:trivium|process)_[a-z0-9_]+")
#: names of labels in braces, in `by (...)` and in `on (...)`
LABELS = re.compile(r"(\w+)=~?\"|(?:by|on) \(([^)]*)\)")


def panels() -> list[dict[str, Any]]:
    board = json.loads(DASHBOARD.read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture
async def exposed(tmp_path: Path) -> dict[str, set[str]]:
    """Labels by the names of metrics that Prometheus of the stack of `deploy/` gets of a broker in
    which everything has happened."""
    config = Config(
        storage=StorageConfig(data=tmp_path), listen={"mqtt": Listen(0), "amqp": Listen(0)}
    )
    async with Broker(config) as broker:
        vhost = broker.vhost("/")
        limited: dict[str, object] = {"x-max-length": 1}
        dead: dict[str, object] = {**limited, "x-dead-letter-exchange": "amq.fanout"}
        for name, arguments in (("limited", limited), ("dead", dead)):
            queue = vhost.declare_queue(name, durable=True, arguments=arguments)
            for _ in range(2):
                queue.put(message(b"x"), b"")
        stream = vhost.declare_stream("s")
        vhost.groups.commit("g", stream, [(0, 0)])
        broker.quotas.account("user", "ann")
        broker.quotas.account("listener", "mqtt")
        found: dict[str, set[str]] = {}
        for name, labels in parse(metrics_text(broker, SCRAPED.get("metrics_path", "/metrics"))):
            found.setdefault(name, set()).update(key for key, _ in labels)
        return found


async def test_each_query_is_of_metrics_that_there_are(exposed: dict[str, set[str]]) -> None:
    asked = {name for _, query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 40
    assert asked - exposed.keys() == set()


async def test_each_label_of_a_query_is_one_of_its_metrics(exposed: dict[str, set[str]]) -> None:
    given = {"job", "instance"}
    for title, query in queries():
        known = set().union(*(exposed[name] for name in METRIC.findall(query))) | given
        for one, several in LABELS.findall(query):
            wanted = {one} if one else set(several.split(", "))
            assert wanted <= known | {"le"}, (title, query)


async def test_each_legend_has_labels_that_are_left(exposed: dict[str, set[str]]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            names = METRIC.findall(target["expr"])
            known = set().union(*(exposed[name] for name in names)) | {"job", "instance"}
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"sum(?: by \(([^)]*)\))? \(", target["expr"])
            if grouped is not None:
                known &= set((grouped[1] or "").split(", "))
            assert wanted <= known, panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert all(x < 24 for x, _ in cells), panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_counters_are_asked_for_as_rates() -> None:
    for title, query in queries():
        for name in METRIC.findall(query):
            if name.endswith(("_total", "_bucket", "_count")):
                assert re.search(rf"rate\({name}\{{", query), (title, name)
