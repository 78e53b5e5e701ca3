"""A collector of spans on loopback: OTLP over HTTP, as opentelemetry-proto reads it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Takes spans, or answers with ``status``. With ``hangs_up`` it ends each connection after an
    answer that does not say so."""

    def __init__(self, status: int = 200, hangs_up: bool = False) -> None:
        self.status = status
        self.connections = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._spans: list[Span] = []
        self._services: set[str] = set()
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                collector.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(self.path, dict(self.headers), body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                self.close_connection |= hangs_up

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self._came:
            self.requests.append((path, headers))
            if self.status == 200:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for each in resource.resource.attributes:
                        if each.key == "service.name":
                            self._services.add(each.value.string_value)
                    for scope in resource.scope_spans:
                        self._spans.extend(scope.spans)
            self._came.notify_all()

    def wait(self, spans: int, requests: int = 0, seconds: float = 20.0) -> list[Span]:
        """So many spans, once they are there, and so many requests."""
        with self._came:
            assert self._came.wait_for(
                lambda: len(self._spans) >= spans and len(self.requests) >= requests, seconds
            ), [span.name for span in self._spans]
            return list(self._spans)

    @property
    def services(self) -> set[str]:
        return self._services
