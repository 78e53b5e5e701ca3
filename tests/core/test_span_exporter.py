"""Spans on their way to a collector."""

from __future__ import annotations

import logging

import pytest

from tests.support.collector import Collector
from trivium.config import TracingConfig
from trivium.errors import ConfigError
from trivium.observability import span_exporter
from trivium.observability.otlp import SERVER, named
from trivium.observability.span_exporter import SpanExporter


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL", 0.01)
    monkeypatch.setattr(span_exporter, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(span_exporter, "LONGEST_PAUSE", 0.02)


def add(exporter: SpanExporter, name: str = "n") -> None:
    exporter.spans.add(b"t" * 16, 1, 0, 1, 2, named(name, SERVER), "", "")


def test_spans_reach_the_collector() -> None:
    with Collector() as collector:
        headers = {"Authorization": "secret"}
        config = TracingConfig(endpoint=collector.url, service_name="farm", headers=headers)
        exporter = SpanExporter(config)
        for number in range(span_exporter.BATCH + 1):
            add(exporter, str(number))
        names = [found.name for found in collector.wait(span_exporter.BATCH + 1)]
        exporter.close()
        assert names == [str(number) for number in range(span_exporter.BATCH + 1)]
        path, sent = collector.requests[0]
        assert path == "/v1/traces"
        assert (sent["Content-Type"], sent["Authorization"]) == (
            "application/x-protobuf",
            "secret",
        )
        assert collector.services == {"farm"}
    assert (exporter.sent, exporter.dropped) == (span_exporter.BATCH + 1, 0)


@pytest.mark.parametrize(("hangs_up", "connections"), [(False, 1), (True, 3)])
def test_a_connection_is_kept_as_long_as_the_collector_keeps_it(
    hangs_up: bool, connections: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Collector(hangs_up=hangs_up) as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url))
        for number in range(1, 4):
            add(exporter)
            collector.wait(number, requests=number)
        exporter.close()
        assert collector.connections == connections
    assert (exporter.sent, caplog.records) == (3, [])


def test_few_spans_wait_for_more_and_many_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "LONGEST_WAIT", 3600.0)
    with Collector() as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url))
        for _ in range(span_exporter.BATCH - 1):
            add(exporter)
        assert exporter.sent == 0
        add(exporter)
        collector.wait(span_exporter.BATCH)
        exporter.close()
        assert len(collector.requests) == 1


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://user:p%40ss@"))
        exporter = SpanExporter(TracingConfig(endpoint="http://collector.test:4318"))
        add(exporter)
        proxy.wait(1)
        exporter.close()
        ((path, sent),) = proxy.requests
    assert path == "http://collector.test:4318/v1/traces"
    assert sent["Host"] == "collector.test:4318"
    assert sent["Proxy-Authorization"] == "Basic dXNlcjpwQHNz"


def test_a_proxy_is_asked_for_a_way_to_a_collector_with_tls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Collector() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        exporter = SpanExporter(TracingConfig(endpoint="https://collector.test"))
        add(exporter)
        exporter.close()
    # This one knows no CONNECT.
    assert "Tunnel connection failed: 501" in caplog.text


def test_what_waits_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL", 3600.0)
    with Collector() as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url))
        add(exporter)
        exporter.close()
        assert len(collector.wait(1)) == 1


def test_a_collector_that_is_away_is_one_line_and_spans_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with Collector(status=503) as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url))
        add(exporter, "first")
        collector.wait(0, requests=3)
        collector.status = 200
        add(exporter, "second")
        assert [found.name for found in collector.wait(2)] == ["first", "second"]
        exporter.close()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"{collector.url}/v1/traces takes no spans: HTTP 503"),
        ("INFO", f"{collector.url}/v1/traces takes spans again"),
    ]
    assert exporter.dropped == 0


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as collector:
        pass
    exporter = SpanExporter(TracingConfig(endpoint=collector.url))
    add(exporter)
    exporter.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert exporter.sent == 0


def test_what_is_refused_for_good_is_dropped_and_counted() -> None:
    with Collector(status=400) as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url))
        add(exporter)
        collector.wait(0, requests=1)
        exporter.close()
        assert exporter.dropped == 1
        assert len(collector.requests) == 1


def test_more_than_there_is_room_for_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_exporter, "INTERVAL", 3600.0)
    with Collector() as collector:
        exporter = SpanExporter(TracingConfig(endpoint=collector.url, max_spans=2))
        for name in ("a", "b", "c"):
            add(exporter, name)
        exporter.close()
        assert [found.name for found in collector.wait(2)] == ["a", "b"]
    assert exporter.dropped == 1


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:1", "http://h:1/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://h/own/path", "http://h/own/path"),
    ],
)
def test_where_spans_are_sent(endpoint: str, url: str) -> None:
    assert TracingConfig(endpoint=endpoint).traces_url == url


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("endpoint", "file:///etc/passwd"), ("sample_ratio", 1.1), ("sample_ratio", -0.1)),
        *(("timeout_seconds", 0.0), ("max_spans", 0)),
    ],
)
def test_what_cannot_be_configured(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        TracingConfig(**{key: value})  # type: ignore[arg-type]
