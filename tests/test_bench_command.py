"""`trivium bench` as a process, and loads on brokers that do not keep what they promise."""

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import COMMAND, NO_PROTOCOLS, run, serve
from trivium.cli.bench import is_good
from trivium.cli.clients import Server
from trivium.cli.loads import Load, Pace
from trivium.cli.roads import Plan
from trivium_amqp.codec.frames import method_frame
from trivium_amqp.codec.methods import TX_COMMIT_OK
from trivium_amqp.load import AmqpPublisher
from trivium_mqtt.codec.packets import acknowledgement
from trivium_mqtt.load import open_road
from trivium_native import connect

SCHEMES = {"mqtt": "mqtt", "amqp": "amqp", "trivium": "native"}
PROTOCOLS = ("--mqtt", "0", "--amqp", "0", "--native", "0", "--http", "off")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Of each scheme, on one broker."""
    with serve("--memory", *PROTOCOLS) as (_, line):
        places = dict(word.split("=", 1) for word in line.split()[2:])
        yield {scheme: f"{scheme}://{places[name]}" for scheme, name in SCHEMES.items()}


def figures(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = run("bench", *arguments, "--json")
    assert result.returncode == code, result.stderr + result.stdout
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_a_count_of_messages_is_published_and_received(
    urls: dict[str, str], scheme: str, qos: str
) -> None:
    if (scheme, qos) == ("amqp", "2"):
        result = run("bench", urls[scheme], "--qos", qos)
        assert (result.returncode, result.stderr) == (2, "trivium bench: amqp:// has no --qos 2\n")
        return
    found = figures(
        urls[scheme], "--qos", qos, "--count", "600", "--publishers", "2", "--consumers", "2",
        "--size", "3000",
    )  # fmt: skip
    copies = 2 if scheme == "mqtt" else 1
    assert found["published"] == found["acknowledged"] == 600
    assert found["delivered"] == copies * 600
    assert found["lost"] == found["duplicates"] == found["unknown"] == found["out_of_order"] == 0
    assert found["publish_to_deliver_ms"]["p50"] > 0
    assert found["delivered_per_second"] == pytest.approx(copies * 600 / found["seconds"], rel=0.1)


@pytest.mark.parametrize("qos", ["0", "1"])
@pytest.mark.parametrize("scheme", ["amqp", "trivium"])
def test_a_stream_is_read_by_each_consumer_or_by_a_group(
    urls: dict[str, str], scheme: str, qos: str
) -> None:
    found = figures(
        urls[scheme], "--stream", "--qos", qos, "--count", "300", "--consumers", "2",
        "--name", "gone",
    )  # fmt: skip
    assert (found["acknowledged"], found["lost"], found["duplicates"]) == (300, 0, 0)
    # Native consumers are members of a group.
    assert found["delivered"] == (600 if scheme == "amqp" else 300)
    assert "gone" in run("sub", urls["trivium"], "gone", "--from", "first").stderr


@pytest.mark.parametrize("scheme", ["amqp", "trivium"])
def test_messages_are_published_in_transactions(urls: dict[str, str], scheme: str) -> None:
    found = figures(urls[scheme], "--transaction", "7", "--count", "100")
    assert (found["acknowledged"], found["delivered"], found["transaction"]) == (100, 100, 7)
    assert found["lost"] == found["duplicates"] == found["out_of_order"] == 0


async def test_transactions_have_as_many_messages_as_asked_for_at_most() -> None:
    """Of AMQP, by what it says when it commits."""
    plan = Plan(name="test", qos=1, consumers=0, transaction=3)
    settled: list[int] = []
    publisher = AmqpPublisher(Settled(settled), plan)
    for number in range(7):
        publisher.publish(number, b"x")
    publisher.flush()
    for expected in ([0, 1, 2], [3, 4, 5], [6]):
        assert publisher.consume(method_frame(1, TX_COMMIT_OK) + b"\0") > 0
        assert settled == expected
        settled.clear()


def test_what_is_published_in_the_warm_up_is_verified_and_not_measured(
    urls: dict[str, str],
) -> None:
    found = figures(urls["mqtt"], "--warm-up", "0.3", "--seconds", "0.3", "--rate", "500")
    measured = found["published_per_second"] * found["seconds"]
    assert 0 < measured < found["published"] == found["acknowledged"] == found["delivered"]


def test_a_broker_of_its_own_is_used_and_is_gone() -> None:
    found = figures("amqp", "--count", "10", "--rate", "1000", "--size", "200000")
    assert (found["delivered"], found["rate"], found["failure"]) == (10, 1000.0, None)


def test_without_a_url_all_protocols_are_loaded_in_turn() -> None:
    result = run("bench", "--count", "5")
    assert result.returncode == 0
    assert [line.split(",")[0] for line in result.stdout.splitlines() if ", QoS 1" in line] == [
        "amqp", "mqtt", "trivium",
    ]  # fmt: skip
    assert result.stderr == ""


def test_the_queue_is_gone_afterwards(urls: dict[str, str]) -> None:
    figures(urls["trivium"], "--count", "5", "--consumers", "0", "--name", "gone")
    result = run("sub", urls["trivium"], "gone", "--queue")
    assert result.returncode == 1
    assert "gone" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("http://localhost",), "does not begin with one of amqp[s]://, mqtt[s]://, trivium[s]://"),
        (("mqtt", "--size", "8"), "--size is from 28 to 8388608 bytes"),
        (("mqtt", "--window", "65536"), "--window is from 1 to 65535 messages"),
        (("mqtt", "--size", "8000000"), "publishers x window x size is at most 268435456 bytes"),
        (("mqtt", "--publishers", "1001"), "there are at most 1000 publishers and consumers"),
        (("mqtt", "--seconds", "0"), "'0' is not from 0.1 to 86400"),
        (("mqtt", "--transient"), "mqtt:// has no --transient, but --qos 0"),
        (("mqtt", "--stream"), "mqtt:// has no --stream"),
        (("mqtt", "--transaction", "2"), "mqtt:// has no --transaction"),
        (("amqp", "--transaction", "2", "--qos", "0"), "--transaction is of --qos 1"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(arguments: tuple[str, ...], error: str) -> None:
    result = run("bench", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert error in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_broker_that_is_not_there_is_one_line() -> None:
    result = run("bench", "mqtt://127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr == "trivium bench: cannot connect to 127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize("scheme", ["mqtt", "amqp"])
def test_a_wrong_password_is_one_line(urls: dict[str, str], scheme: str) -> None:
    result = run("bench", urls[scheme].replace("//", "//guest:wrong@"))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "bad user name or password" in result.stderr or "ACCESS_REFUSED" in result.stderr


@pytest.mark.parametrize("scheme", ["mqtt", "amqp"])
def test_what_speaks_tls_is_told_from_what_speaks_nothing(scheme: str, tmp_path: Path) -> None:
    assert run("tls", "self-signed", str(tmp_path / "tls")).returncode == 0
    files = [
        *("--tls-certificate", str(tmp_path / "tls/server.pem")),
        *("--tls-key", str(tmp_path / "tls/server.key")),
    ]
    with serve("--memory", *NO_PROTOCOLS, f"--{scheme}s", "0", *files) as (_, line):
        place = line.partition(f"{scheme}s=")[2].split()[0]
        ca = ("--tls-ca", str(tmp_path / "tls/ca.pem"))
        found = figures(f"{scheme}s://{place}", *ca, "--count", "20")
        refused = run("bench", f"{scheme}://{place}")
    assert found["delivered"] == 20
    assert refused.returncode == 1
    assert "TLS is spoken there, so the URL needs an s behind its scheme" in refused.stderr


def test_who_reads_the_report_may_be_gone(urls: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "bench", urls["mqtt"], "--count", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait(60) == 0


def test_an_interrupt_ends_it_with_the_results_so_far(urls: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "bench", urls["mqtt"], "--seconds", "600", "--name", "until", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    async def first() -> None:
        async with connect(urls["trivium"]) as client, client.subscribe("until.#") as messages:
            async for _ in messages:
                return

    try:
        asyncio.run(first())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    found = json.loads(output)
    assert (process.returncode, errors) == (0, "")
    assert found["is_interrupted"]
    assert found["delivered"] == found["published"] == found["acknowledged"] > 0


class Settled:
    """Who is told what a publisher's broker has acknowledged."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def acknowledged(self, number: int) -> None:
        self._numbers.append(number)

    def refused(self, number: int) -> None: ...

    def received(self, payload: bytes, is_redelivered: bool) -> None: ...

    def can_go_on(self) -> None: ...

    def lost(self, reason: str) -> None: ...


class Deliver:
    """What a broker does with the message of a number: how often it delivers it."""

    def __init__(self, copies: dict[int, int]) -> None:
        self._copies = copies
        self.writers: list[asyncio.StreamWriter] = []
        self._number = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """MQTT as far as a load needs it; QoS 1 in, QoS 0 out."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, size = await reader.readexactly(2)
                body = await reader.readexactly(size)
                if first == 0x10:
                    writer.write(b"\x20\x02\x00\x00")
                elif first == 0x82:
                    self.writers.append(writer)
                    writer.write(b"\x90\x03" + body[:2] + b"\x01")
                elif first == 0x32:
                    self._publish(writer, body)
        writer.close()

    def _publish(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        topic_end = 2 + int.from_bytes(body[:2], "big")
        writer.write(acknowledgement(0x40, int.from_bytes(body[topic_end:][:2], "big"), 0))
        message = body[:topic_end] + body[topic_end + 2 :]
        for _ in range(self._copies.get(self._number, 1)):
            for subscriber in self.writers:
                subscriber.write(bytes((0x30, len(message))) + message)
        self._number += 1


@contextlib.asynccontextmanager
async def broker_that(copies: dict[int, int]) -> AsyncIterator[int]:
    """The port of one that delivers some messages not once."""
    server = await asyncio.start_server(Deliver(copies).serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("copies", "lost", "duplicates", "gaps"),
    [
        ({}, 0, 0, {}),
        ({3: 0, 5: 0, 6: 0}, 3, 0, {"publisher 0": ["3", "5-6"]}),
        ({4: 2}, 0, 1, {}),
        ({0: 3, 19: 0}, 1, 2, {"publisher 0": ["19"]}),
    ],
)
async def test_what_a_broker_loses_or_doubles_is_found(
    copies: dict[int, int], lost: int, duplicates: int, gaps: dict[str, list[str]]
) -> None:
    async with broker_that(copies) as port:
        plan = Plan(name="test", qos=1, consumers=1)
        pace = Pace(publishers=1, size=40, window=10, count=20, patience=0.3)
        server = Server("127.0.0.1", port, None, None, "")
        load = Load(open_road(server, plan), plan, pace)
        try:
            await load.start()
            await load.finish_publishing()
            await load.drain(asyncio.Event())
        finally:
            await load.close()
    found = load.report() | {"failure": load.failure, "is_interrupted": False}
    assert (found["lost"], found["duplicates"], found["gaps"]) == (lost, duplicates, gaps)
    assert is_good(plan, found) == (not copies)


async def test_at_a_rate_a_stall_is_charged_to_every_message_that_had_to_wait() -> None:
    """Delays count from when a message was due, not from when the broker let it be sent."""
    stalled = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = Deliver({})
        head = await reader.readexactly(2)
        await reader.readexactly(head[1])
        writer.write(b"\x20\x02\x00\x00")
        # The first message waits for its acknowledgement until eleven were due.
        body = await reader.readexactly(2)
        packet = await reader.readexactly(body[1])
        await stalled.wait()
        topic_end = 2 + int.from_bytes(packet[:2], "big")
        writer.write(acknowledgement(0x40, int.from_bytes(packet[topic_end:][:2], "big"), 0))
        await first.serve(reader, writer)

    server = await asyncio.start_server(stall, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        plan = Plan(name="test", qos=1, consumers=0)
        pace = Pace(publishers=1, size=40, window=1, rate=100, count=11)
        load = Load(open_road(Server("127.0.0.1", port, None, None, ""), plan), plan, pace)
        try:
            await load.start()
            asyncio.get_running_loop().call_later(0.1, stalled.set)
            await load.finish_publishing()
            await load.drain(asyncio.Event())
        finally:
            await load.close()
    assert load.acknowledged == 11
    # Due 0, 10, ... 90 ms after the begin and sent after 100 ms at the earliest.
    assert load.to_acknowledge.percentile(50) >= 40_000_000
