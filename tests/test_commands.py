"""`trivium pub` and `trivium sub` against a running broker, each by its own protocol and across."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.commands import COMMAND
from trivium.cli import clients
from trivium_native import connect
from trivium_native.values import Publication

SCHEMES = {"mqtt": "mqtt", "amqp": "amqp", "trivium": "native"}
TIMEOUT = 60


@dataclass
class Running:
    """A broker process and the URL of each of its protocols."""

    process: subprocess.Popen[str]
    urls: dict[str, str]

    def pub(
        self, scheme: str, *arguments: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "pub", self.urls[scheme], *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )

    @contextlib.contextmanager
    def sub(self, scheme: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A subscriber that is subscribed."""
        process = subprocess.Popen(
            [*COMMAND, "sub", self.urls[scheme], "--verbose", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("subscribed to "), line + process.stderr.read()
            yield process
        finally:
            process.kill()
            process.communicate(timeout=TIMEOUT)


@contextlib.contextmanager
def run_broker() -> Iterator[Running]:
    ports = ["--mqtt", "0", "--amqp", "0", "--native", "0", "--http", "off"]
    process = subprocess.Popen(
        [*COMMAND, "serve", "--memory", *ports], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        places = dict(word.split("=", 1) for word in words[2:])
        yield Running(process, {s: f"{s}://{places[name]}" for s, name in SCHEMES.items()})
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with run_broker() as running:
        yield running


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=TIMEOUT)
    assert "Traceback" not in err
    return process.returncode, out


def topic(scheme: str, levels: str) -> str:
    """The address in the scheme's own notation."""
    if scheme == "mqtt":
        return levels.replace(".", "/").replace("*", "+")
    return levels


@pytest.mark.parametrize("source", SCHEMES)
@pytest.mark.parametrize("target", SCHEMES)
def test_published_message_is_printed(broker: Running, source: str, target: str) -> None:
    with broker.sub(target, topic(target, "home.*.temperature"), "--count", "1") as subscriber:
        result = broker.pub(source, topic(source, "home.attic.temperature"), "21.5 °C")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert finish(subscriber) == (0, topic(target, "home.attic.temperature") + " 21.5 °C\n")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_line_of_standard_input_is_a_message(broker: Running, scheme: str) -> None:
    lines = [f"line {number}" for number in range(1000)]
    with broker.sub(scheme, "lines", "--count", "1000") as subscriber:
        assert broker.pub(scheme, "lines", stdin="\n".join(lines)).returncode == 0
        code, out = finish(subscriber)
    assert code == 0
    assert out.splitlines() == [f"lines {line}" for line in lines]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_subscriber_exits_0(
    broker: Running, scheme: str, number: signal.Signals
) -> None:
    with broker.sub(scheme, "a") as subscriber:
        subscriber.send_signal(number)
        assert finish(subscriber) == (0, "")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_interrupted_publisher_exits_0_while_it_waits_for_input(
    broker: Running, scheme: str
) -> None:
    with broker.sub(scheme, "a", "--count", "1") as subscriber:
        publisher = subprocess.Popen(
            [*COMMAND, "pub", broker.urls[scheme], "a"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert publisher.stdin is not None
        publisher.stdin.write("x\n")
        publisher.stdin.flush()
        assert finish(subscriber) == (0, "a x\n")
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(timeout=TIMEOUT) == 0
        assert publisher.communicate(timeout=TIMEOUT)[1] == ""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lost_broker_is_one_line_and_exit_1(scheme: str) -> None:
    with run_broker() as broker, broker.sub(scheme, "a") as subscriber:
        broker.process.kill()
        _, err = subscriber.communicate(timeout=TIMEOUT)
    assert (subscriber.returncode, err.count("\n")) == (1, 1), err
    assert err.startswith("trivium sub: ")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_closed_output_ends_the_subscriber_quietly(broker: Running, scheme: str) -> None:
    reader, writer = os.pipe()
    subscriber = subprocess.Popen(
        [*COMMAND, "sub", broker.urls[scheme], "--verbose", "a"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    os.close(reader)
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed to a\n"
    assert broker.pub(scheme, "a", "x").returncode == 0
    assert (subscriber.communicate(timeout=TIMEOUT)[1], subscriber.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("scheme", "arguments", "text"),
    [
        ("mqtt", ["pub", "a/#", "x"], "topic"),
        ("mqtt", ["sub", "a/#/b"], "filter"),
        ("mqtt", ["sub", "a", "--queue"], "neither --queue nor --from"),
        ("amqp", ["pub", "a", "x", "--retain"], "neither --qos 2 nor --retain"),
        ("amqp", ["sub", "a", "--from", "0"], "has no --from"),
        ("trivium", ["sub", "a", "--from", "yesterday"], "not an offset, first or next"),
        ("trivium", ["sub", "a", "--filter", "a/b"], "--filter chooses records of a stream"),
    ],
)
def test_option_that_does_not_fit_is_one_line_and_exit_2(
    broker: Running, scheme: str, arguments: list[str], text: str
) -> None:
    result = subprocess.run(
        [*COMMAND, arguments[0], broker.urls[scheme], *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert text in result.stderr.lower()


def test_amqp_reports_what_does_not_exist(broker: Running) -> None:
    result = broker.pub("amqp", "a", "x", "--exchange", "nowhere")
    assert result.returncode == 1
    assert "no exchange 'nowhere'" in result.stderr


def test_amqp_names_a_virtual_host_that_does_not_exist(broker: Running) -> None:
    for command in (
        ["pub", f"{broker.urls['amqp']}/nope", "a", "x"],
        ["sub", f"{broker.urls['amqp']}/nope", "a"],
    ):
        result = subprocess.run(
            [*COMMAND, *command], capture_output=True, text=True, timeout=TIMEOUT
        )
        refused = (
            "cannot connect to 127.0.0.1:[0-9]+: the server does not let guest into vhost 'nope'"
        )
        assert result.returncode == 1
        assert re.fullmatch(f"trivium {command[0]}: {refused}\n", result.stderr), result.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_is_not_there_is_named(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for arguments in (
        ["pub", f"{scheme}://127.0.0.1:{port}", "a", "x"],
        ["sub", f"{scheme}://127.0.0.1:{port}", "a"],
    ):
        result = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT
        )
        assert (result.returncode, result.stdout) == (1, "")
        refused = f"trivium {arguments[0]}: cannot connect to 127.0.0.1:{port}: "
        assert result.stderr.startswith(refused)
        assert result.stderr.count("\n") == 1


def test_an_address_that_cannot_be_is_named_with_its_option() -> None:
    for option, value, text in (
        ("--mqtt", "70000", "port 70000 is not in 0..65535"),
        ("--http", "a:b", "'a:b' is not [HOST:]PORT or off (IPv6 hosts in brackets)"),
    ):
        result = subprocess.run(
            [*COMMAND, "serve", "--memory", option, value],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"trivium serve: argument {option}: {text}\n"


def test_native_reports_what_does_not_exist(broker: Running) -> None:
    for arguments, text in (
        (["pub", "a", "x", "--exchange", "nowhere"], "nowhere"),
        (["sub", "nowhere", "--queue"], "nowhere"),
        (["sub", "nowhere", "--from", "first"], "nowhere"),
    ):
        result = subprocess.run(
            [*COMMAND, arguments[0], broker.urls["trivium"], *arguments[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
        assert text in result.stderr


@pytest.mark.parametrize("scheme", ["amqp", "trivium"])
async def test_queue_gives_each_message_once(broker: Running, scheme: str) -> None:
    async with connect(broker.urls["trivium"]) as client:
        await client.declare_queue("jobs")
        await client.bind("queue", "jobs", pattern="jobs.#")
    assert broker.pub("mqtt", "jobs/a", stdin="1\n2\n3\n").returncode == 0
    for expected in ("jobs.a 1\njobs.a 2\n", "jobs.a 3\n"):
        count = str(expected.count("\n"))
        with broker.sub(scheme, "jobs", "--queue", "--count", count) as subscriber:
            assert finish(subscriber) == (0, expected)


async def test_stream_is_read_from_an_offset_as_often_as_one_likes(broker: Running) -> None:
    async with connect(broker.urls["trivium"]) as client:
        await client.declare_stream("log", partitions=3)
        await client.bind("stream", "log", pattern="log.#")
    lines = [f"{number}" for number in range(20)]
    for key in ("log.a", "log.b", "log.c"):
        assert broker.pub("trivium", key, stdin="\n".join(lines)).returncode == 0
    expected = sorted(f"{key} {line}" for key in ("log.a", "log.b", "log.c") for line in lines)
    for _ in range(2):
        with broker.sub("trivium", "log", "--from", "first", "--count", "60") as subscriber:
            code, out = finish(subscriber)
        assert (code, sorted(out.splitlines())) == (0, expected)
    with broker.sub("trivium", "log", "--from", "next", "--count", "1") as subscriber:
        assert broker.pub("trivium", "log.d", "new").returncode == 0
        assert finish(subscriber) == (0, "log.d new\n")


async def test_offset_skips_what_comes_before_it_in_its_batch(broker: Running) -> None:
    async with connect(broker.urls["trivium"]) as client:
        await client.declare_stream("skip")
        await client.bind("stream", "skip", pattern="skip")
        publications = [Publication(payload=b"%d" % n, routing_key="skip") for n in range(10)]
        await client.publish_batch(publications)
    with broker.sub("trivium", "skip", "--from", "7", "--count", "3") as subscriber:
        assert finish(subscriber) == (0, "skip 7\nskip 8\nskip 9\n")


async def test_of_a_stream_there_are_the_topics_that_a_filter_matches(broker: Running) -> None:
    async with connect(broker.urls["trivium"]) as client:
        await client.declare_stream("homes", partitions=2)
        await client.bind("stream", "homes", pattern="home.#")
    for topic in ("home.kitchen.light", "home.kitchen.heat", "home.hall.light"):
        assert broker.pub("trivium", topic, "old").returncode == 0
    options = ("homes", "--from", "first", "--filter", "home/+/light", "--count", "3")
    with broker.sub("trivium", *options) as subscriber:
        assert broker.pub("trivium", "home.attic.heat", "new").returncode == 0
        assert broker.pub("trivium", "home.attic.light", "new").returncode == 0
        code, out = finish(subscriber)
    assert (code, sorted(out.splitlines())) == (
        0,
        ["home.attic.light new", "home.hall.light old", "home.kitchen.light old"],
    )


async def test_filter_that_is_none_is_one_line_and_exit_2(broker: Running) -> None:
    async with connect(broker.urls["trivium"]) as client:
        await client.declare_stream("rooms")
    result = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "sub", broker.urls["trivium"], "rooms", "--from", "0", "--filter", "a/#/b"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 2
    assert result.stderr == ("trivium sub: 'filter' is no topic filter: # is not its last level\n")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_messages_are_printed_as_json_with_their_addresses(broker: Running, scheme: str) -> None:
    address = "json/a" if scheme == "mqtt" else "json.a"
    with broker.sub(scheme, address, "--json", "--count", "2") as subscriber:
        published = broker.pub(scheme, address, "--json", stdin='{"x": 1}\n"text"\n')
        assert (published.returncode, published.stdout) == (0, '{"published": 2}\n')
        code, out = finish(subscriber)
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"address": address, "payload": '{"x": 1}'},
        {"address": address, "payload": '"text"'},
    ]


def test_a_payload_that_is_no_text_is_base64_in_json() -> None:
    assert clients.as_json("a", b"\xff") == {"address": "a", "payload_base64": "/w=="}
