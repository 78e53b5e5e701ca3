"""Sends spans to a collector by OTLP over HTTP, from a thread of its own.

Whoever has a span leaves it here and goes on. A collector that is away is a line in the log: spans
wait for it as long as there is room, and what does not fit is dropped and counted.
"""

from __future__ import annotations

# The look-up of a host would import it, in the midst of other work.
import encodings.idna  # noqa: F401
import logging
import ssl
import threading
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from trivium import __version__
from trivium.config import TracingConfig
from trivium.observability.otlp import Spans, encode_request

logger = logging.getLogger(__name__)

#: So many spans are looked for each ``INTERVAL`` seconds; fewer are sent once ``LONGEST_WAIT``
#: seconds have passed.
BATCH: Final = 512
#: So many times as often where that many were there: thousands come each second.
BUSY: Final = 8
#: Spans of one request, most often less than a megabyte: a collector takes 20 by default, and each
#: request costs as much as some hundred spans.
MOST: Final = 2048
INTERVAL: Final = 1.0
LONGEST_WAIT: Final = 5.0
#: Seconds until a collector that was away is asked again, at most.
LONGEST_PAUSE: Final = 30.0
#: Seconds for the answer to the last request, when the broker stops.
LAST_SECONDS: Final = 2.0
#: Answers after which the same may be sent again (OTLP 1.x, "Retryable Response Codes").
RETRYABLE: Final = frozenset({429, 502, 503, 504})
#: Bytes of an answer that are read; nobody needs them, but the connection is good for the next
#: request where that is all.
_MOST_ANSWER: Final = 64 * 1024


class SpanExporter:
    """Sends the spans of one broker."""

    def __init__(self, config: TracingConfig) -> None:
        self._url = config.traces_url
        self._timeout = config.timeout_seconds
        self._collector = _Collector(self._url, config.headers)
        self._resource = {
            "service.name": config.service_name,
            "service.version": __version__,
            "telemetry.sdk.name": "trivium",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": __version__,
        }
        #: those that wait
        self.spans = Spans(config.max_spans)
        self._stopping = threading.Event()
        self._is_away = False
        self._pause = INTERVAL
        # spans that the collector refused
        self._refused = 0
        #: spans that the collector has taken
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Spans that were too many, or that the collector refused."""
        return self.spans.too_many + self._refused

    def close(self) -> None:
        """Try once to send what waits, and end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        waited = 0.0
        pause = self._pause
        while not self._stopping.wait(pause):
            waited += pause
            waiting = len(self.spans)
            if waited >= LONGEST_WAIT or waiting >= BATCH:
                waited = 0.0
                self._send_all()
            is_busy = waiting >= BATCH and not self._is_away
            pause = self._pause / BUSY if is_busy else self._pause
        self._send_all()
        self._collector.close()

    def _send_all(self) -> None:
        while len(self.spans):
            pieces = self.spans.take(MOST)
            reason, may_repeat = self._send(pieces)
            if reason is None:
                self.sent += len(pieces) // 2
                self._is_back()
            elif may_repeat:
                self.spans.put_back(pieces)
                self._is_gone(reason)
                return
            else:
                self._refused += len(pieces) // 2
                self._is_gone(reason)

    def _send(self, pieces: list[bytes]) -> tuple[str | None, bool]:
        """Send some: why they were not taken, and whether they may be sent again."""
        body = encode_request(self._resource, ("trivium", __version__), pieces)
        most = LAST_SECONDS if self._stopping.is_set() else self._timeout
        try:
            status = self._collector.post(body, min(most, self._timeout))
        except (OSError, ValueError) as error:
            return str(error) or repr(error), True
        except Exception as error:
            # What is no HTTP; whatever it is, nobody else shall suffer.
            return repr(error), True
        if 200 <= status < 300:
            return None, False
        return f"HTTP {status}", status in RETRYABLE

    def _is_gone(self, reason: str) -> None:
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        if not self._is_away:
            self._is_away = True
            logger.warning("%s takes no spans: %s", self._url, reason)

    def _is_back(self) -> None:
        self._pause = INTERVAL
        if self._is_away:
            self._is_away = False
            logger.info("%s takes spans again", self._url)


class _Collector:
    """A connection to a collector that stays open, for one thread."""

    def __init__(self, url: str, headers: Mapping[str, Any]) -> None:
        self._headers = {"Content-Type": "application/x-protobuf", **headers}
        self._target, self._connection = self._way_to(url)

    def _way_to(self, url: str) -> tuple[str, HTTPConnection]:
        """The target of requests, and the connection: by the proxy that the environment names."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        target = url[url.index(parts.netloc) + len(parts.netloc) :]
        is_secure = parts.scheme == "https"
        context = ssl.create_default_context() if is_secure else None
        proxy = urlsplit(getproxies().get(parts.scheme, ""))
        if not proxy.hostname or proxy_bypass(host):
            if context is None:
                return target, HTTPConnection(host, parts.port)
            return target, HTTPSConnection(host, parts.port, context=context)
        its = {}
        if proxy.username is not None:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            its["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        if context is None:
            self._headers |= its
            return url, HTTPConnection(proxy.hostname, proxy.port)
        connection = HTTPSConnection(proxy.hostname, proxy.port, context=context)
        connection.set_tunnel(host, parts.port, its)
        return target, connection

    def post(self, body: bytes, timeout: float) -> int:
        """The status of the answer, in so many seconds for each step.

        Raises OSError and HTTPException: there is none.
        """
        connection = self._connection
        connection.timeout = timeout
        is_kept = connection.sock is not None
        if is_kept:
            connection.sock.settimeout(timeout)
        try:
            return self._post(body)
        except ConnectionError:
            # A collector may have ended at any time what nobody used.
            if not is_kept:
                raise
            return self._post(body)

    def _post(self, body: bytes) -> int:
        connection = self._connection
        try:
            connection.request("POST", self._target, body, self._headers)
            answer = connection.getresponse()
            answer.read(_MOST_ANSWER)
        except BaseException:
            connection.close()
            raise
        if not answer.isclosed():
            connection.close()
        return answer.status

    def close(self) -> None:
        """It is needed no more."""
        self._connection.close()
