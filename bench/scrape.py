"""Ask the HTTP API about many queues while messages are published at full speed."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

from bench import amqp_frames
from bench.amqp_clients import AmqpPublisher, AmqpSetup
from bench.backlog import Watch, drive
from bench.endpoints import Address
from bench.frames import payload
from bench.probe import Probe, Waits
from bench.runner import make_server, working_directory
from bench.servers import ServerError, Trivium

_QUEUE: Final = "load"
_LENGTH: Final = 10_000
_WINDOW: Final = 1000
_BODY: Final = payload(64)
_PAGES: Final = 20
_SECONDS: Final = 5.0
_PATHS: Final = ("queues", "queues?sort=messages_details.rate", "definitions", "overview")


@dataclass(frozen=True)
class ScrapeResult:
    """Times in seconds, of one kind of broker with one number of queues."""

    server: str
    queues: int
    page: float
    """The longest of a page of 100, without load and with it."""
    page_under_load: float
    answers: dict[str, float]
    """Of whole lists and documents, under load, by path."""
    usual: Waits
    """The longest waits of others under load, and while it is asked without a pause."""
    scraped: Waits
    rate: float
    """Messages confirmed per second, while nobody asks and while somebody does."""
    rate_scraped: float

    def __str__(self) -> str:
        whole = ", ".join(f"{path} {took * 1000:,.0f} ms" for path, took in self.answers.items())
        return (
            f"{self.server}: {self.queues:,} queues; longest page {self.page * 1000:.0f} ms,"
            f" under load {self.page_under_load * 1000:.0f} ms; {whole}\n"
            f"  longest turn {self.usual.turn * 1000:.1f} ms, scraped"
            f" {self.scraped.turn * 1000:.1f} ms; confirmed {self.rate:,.0f}/s, scraped"
            f" {self.rate_scraped:,.0f}/s"
        )


class _Api:
    def __init__(self, address: Address) -> None:
        self._url = f"http://{address.host}:{address.port}/api/"

    def ask(self, path: str, body: Any = None) -> float:
        """Ask, and read the answer whole; the seconds that it took."""
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
                "Content-Type": "application/json",
            },
        )
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        return time.perf_counter() - start

    def longest_page(self, queues: int) -> float:
        """Of pages here and there in the list."""
        last = max(queues // 100, 1)
        numbers = [1 + (last - 1) * number // (_PAGES - 1) for number in range(_PAGES)]
        return max(self.ask(f"queues?page={number}&page_size=100") for number in numbers)


class _Load:
    """Publishes persistent messages with confirms until it is stopped."""

    def __init__(self, server: Trivium) -> None:
        address = server.addresses["amqp"]
        setup = AmqpSetup(address)
        arguments = amqp_frames.text_table("x-overflow", "drop-head")
        setup.declare_queue(_QUEUE, arguments)
        setup.close()
        self._publisher = AmqpPublisher(address, "", _QUEUE, _BODY, _WINDOW)
        self._watch = Watch(server)
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        publisher = self._publisher

        def act() -> int:
            if not publisher.has_unsent and publisher.unsettled < _WINDOW:
                publisher.publish(_WINDOW - publisher.unsettled)
            return 1 << 62 if self._is_over else publisher.settled

        drive(publisher, act, 1 << 62, self._watch)

    @property
    def confirmed(self) -> int:
        """Messages that were confirmed."""
        return int(self._publisher.settled)

    def close(self) -> None:
        """Stop."""
        self._is_over = True
        self._thread.join()
        self._publisher.close()


def measure_scrape(name: str, queues: int) -> ScrapeResult:
    """Declare ``queues`` queues, and ask about them with load and without.

    Raises:
        ServerError: the server cannot be started, or is not Trivium.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        server = make_server(name, directory, None, on_disk=True)
        if not isinstance(server, Trivium):
            raise ServerError(f"{name} has no HTTP API that is measured here")
        server.has_http = True
        server.start()
        stack.callback(server.stop)
        api = _Api(server.addresses["http"])
        wanted = [
            {"name": f"queue-{number:06}", "vhost": "/", "durable": True, "arguments": {}}
            for number in range(queues)
        ]
        policy = {"vhost": "/", "name": "load", "pattern": f"^{_QUEUE}$", "apply-to": "queues"}
        policy["definition"] = {"max-length": _LENGTH}  # type: ignore[assignment]
        api.ask("definitions", {"queues": wanted, "policies": [policy]})
        page = api.longest_page(queues)
        load = stack.enter_context(closing(_Load(server)))
        probe = stack.enter_context(Probe(server.addresses["mqtt"], server.process_id))
        time.sleep(1)
        probe.take()
        rate = _rate(load)
        usual = probe.take()
        page_under_load = api.longest_page(queues)
        answers = {path: api.ask(path) for path in _PATHS}
        probe.take()
        asking = threading.Thread(target=_ask_for, args=(api,))
        asking.start()
        rate_scraped = _rate(load)
        asking.join()
        scraped = probe.take()
    return ScrapeResult(
        name, queues, page, page_under_load, answers, usual, scraped, rate, rate_scraped
    )


def _rate(load: _Load) -> float:
    before, start = load.confirmed, time.perf_counter()
    time.sleep(_SECONDS)
    return (load.confirmed - before) / (time.perf_counter() - start)


def _ask_for(api: _Api) -> None:
    """Ask for everything again and again."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        for path in _PATHS:
            api.ask(path)
