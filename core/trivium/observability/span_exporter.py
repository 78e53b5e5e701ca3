"""Sends spans to a collector by OTLP over HTTP, from a thread of its own.

Whoever has a span leaves it here and goes on. A collector that is away is a line in the log: spans
wait for it as long as there is room, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import logging
import ssl
import threading
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from trivium import __version__
from trivium.config import TracingConfig
from trivium.observability.otlp import Spans, encode_request

logger = logging.getLogger(__name__)

#: Spans of one request, and seconds between two looks for some.
BATCH: Final = 512
INTERVAL: Final = 1.0
#: Seconds until a collector that was away is asked again, at most.
LONGEST_PAUSE: Final = 30.0
#: Seconds for the answer to the last request, when the broker stops.
LAST_SECONDS: Final = 2.0
#: Answers after which the same may be sent again (OTLP 1.x, "Retryable Response Codes").
RETRYABLE: Final = frozenset({429, 502, 503, 504})


class SpanExporter:
    """Sends the spans of one broker."""

    def __init__(self, config: TracingConfig) -> None:
        self._config = config
        self._url = config.traces_url
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
        self._opener = _make_opener(self._url)
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
        while not self._stopping.wait(self._pause):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while len(self.spans):
            batch = self.spans.take(BATCH)
            reason, may_repeat = self._send(batch)
            if reason is None:
                self.sent += len(batch)
                self._is_back()
            elif may_repeat:
                self.spans.put_back(batch)
                self._is_gone(reason)
                return
            else:
                self._refused += len(batch)
                self._is_gone(reason)

    def _send(self, spans: list[bytes]) -> tuple[str | None, bool]:
        """Send some: why they were not taken, and whether they may be sent again."""
        scope = ("trivium", __version__)
        body = encode_request(self._resource, scope, spans)
        headers = {"Content-Type": "application/x-protobuf", **self._config.headers}
        # The configuration admits http and https alone.
        request = Request(self._url, body, headers)  # noqa: S310
        most = LAST_SECONDS if self._stopping.is_set() else self._config.timeout_seconds
        try:
            with self._opener.open(request, timeout=min(most, self._config.timeout_seconds)):
                return None, False
        except HTTPError as error:
            error.close()
            return f"HTTP {error.code}", error.code in RETRYABLE
        except (OSError, ValueError) as error:
            return str(error), True
        except Exception as error:
            # What is no HTTP; whatever it is, nobody else shall suffer.
            return repr(error), True

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


def _make_opener(url: str) -> OpenerDirector:
    """What sends the requests. With TLS ``urlopen`` would read all authorities for each of them."""
    if url.startswith("https:"):
        return build_opener(HTTPSHandler(context=ssl.create_default_context()))
    return build_opener()
