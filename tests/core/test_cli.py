"""The command `trivium`, as a process: what it prints, and how it exits."""

import gc
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.commands import NO_PROTOCOLS, run, serve
from trivium import __version__
from trivium.cli import EXIT_FAILED, EXIT_IO, EXIT_LOCKED, EXIT_OK, EXIT_USAGE
from trivium.cli.serve import begin_collecting, relax_interpreter
from trivium.security.passwords import verify_password
from trivium.security.scram import make_keys, parse_keys


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, text: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert text in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def test_version_is_the_packages() -> None:
    assert run("--version").stdout == f"trivium {__version__}\n"


def test_without_command_help_goes_to_stderr() -> None:
    result = run()
    assert result.returncode == EXIT_USAGE
    assert result.stderr.startswith("usage: trivium")


@pytest.mark.parametrize("command", ["serve", "pub", "sub", "policy", "hash-password"])
def test_each_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == EXIT_OK
    assert result.stdout.startswith(f"usage: trivium {command}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["serve", "--mqtt", "x:y"], "'x:y' is not [HOST:]PORT or off"),
        (["serve", "--memory", "--data", "d"], "not allowed with argument --memory"),
        (["serve", "--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["serve", "--config", ""], "argument --config: it must not be empty"),
        (["serve", "--data", ""], "argument --data: it must not be empty"),
        (["serve", "--data="], "argument --data: it must not be empty"),
        (["serve", "--mqtt", ""], "'' is not [HOST:]PORT or off"),
        (["check", ""], "argument DIR: it must not be empty"),
        (["repair", ""], "argument DIR: it must not be empty"),
        (["check", "d", "--key-file", ""], "argument --key-file: it must not be empty"),
        (["check", "d", "--key-env", ""], "argument --key-env: it must not be empty"),
        (["pub", "", "a", "b"], "does not begin with one of"),
        (["pub", "smtp://host", "a", "b"], "does not begin with one of amqp[s]://, mqtt[s]://"),
        (["pub", "mqtt://host:port", "a", "b"], "not a URL"),
        (["pub", "mqtt://host", "a", "b", "--qos", "3"], "argument --qos: invalid choice"),
        (["sub", "mqtt://host", "a", "--count", "0"], "'0' is not a number above 0"),
        (["sub", "amqp://host", "a", "--queue", "--from", "first"], "exclude each other"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    assert_one_line(run(*arguments, cwd=tmp_path), EXIT_USAGE, text)
    assert list(tmp_path.iterdir()) == []


def test_wrong_environment_is_one_line_and_exit_2() -> None:
    result = run("serve", "--memory", TRIVIUM_LIMITS__MAX_CONNECTIONS="lots")
    assert_one_line(result, EXIT_USAGE, "TRIVIUM_LIMITS__MAX_CONNECTIONS: [limits] max_connections")


def test_the_ready_line_may_be_json() -> None:
    with serve("--memory", *NO_PROTOCOLS[2:], "--mqtt", "0", "--json") as (_, line):
        found = json.loads(line)
    assert found.keys() == {"mqtt", "data"}
    assert found["data"] == "memory"
    assert found["mqtt"].startswith("127.0.0.1:")


def test_ready_line_names_each_listener_and_the_data_directory(tmp_path: Path) -> None:
    ports = ["--mqtt", "0", "--amqp", "0", "--native", "[::1]:0", "--http", "0"]
    with serve(*ports, "--data", "data", cwd=tmp_path) as (process, line):
        pattern = r"trivium ready mqtt=127\.0\.0\.1:(\d+) amqp=127\.0\.0\.1:(\d+) "
        pattern += r"native=\[::1\]:(\d+) http=127\.0\.0\.1:(\d+) data=data\n"
        match = re.fullmatch(pattern, line)
        assert match, line
        for host, port in zip(("127.0.0.1", "127.0.0.1", "::1"), match.groups(), strict=False):
            socket.create_connection((host, int(port)), timeout=10).close()
        with urllib.request.urlopen(f"http://127.0.0.1:{match[4]}/health/ready") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (EXIT_OK, ""), "exactly one line on standard output"
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_with_exit_0_and_no_traceback(number: signal.Signals) -> None:
    with serve("--memory", *NO_PROTOCOLS) as (process, line):
        assert line == "trivium ready data=memory\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == EXIT_OK
        assert "Traceback" not in err


def test_self_signed_makes_what_the_short_options_take(tmp_path: Path) -> None:
    made = run("tls", "self-signed", "certs", "--host", "broker.example", cwd=tmp_path)
    assert made.returncode == EXIT_OK
    names = ["ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"]
    assert made.stdout.split() == [f"certs/{name}" for name in names]
    for name in names:
        mode = (tmp_path / "certs" / name).stat().st_mode & 0o777
        assert mode == (0o600 if name.endswith(".key") else 0o644)
    again = run("tls", "self-signed", "certs", cwd=tmp_path)
    assert_one_line(again, EXIT_FAILED, "certs/ca.pem exists already")
    secure = ["--mqtts", "0", "--amqps", "localhost:0", "--natives", "0", "--https", "[::1]:0"]
    files = ["--tls-certificate", "certs/server.pem", "--tls-key", "certs/server.key"]
    arguments = [*NO_PROTOCOLS, *secure, *files, "--tls-ca", "certs/ca.pem", "--memory"]
    with serve(*arguments, cwd=tmp_path) as (_, line):
        pattern = r"trivium ready mqtts=127\.0\.0\.1:(\d+) amqps=127\.0\.0\.1:\d+ "
        pattern += r"natives=127\.0\.0\.1:\d+ https=\[::1\]:\d+ data=memory\n"
        match = re.fullmatch(pattern, line)
        assert match, line
        context = ssl.create_default_context(cafile=str(tmp_path / "certs/ca.pem"))
        context.load_cert_chain(tmp_path / "certs/client.pem", tmp_path / "certs/client.key")
        for host in ("localhost", "127.0.0.1", "::1", "broker.example"):
            with (
                socket.create_connection(("127.0.0.1", int(match[1])), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname=host) as client,
            ):
                assert client.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mqtts", "0"], "[listen] mqtts: tls needs the files certificate and key"),
        (["--mqtts", "0", "--tls-certificate", "a"], "tls needs the files certificate and key"),
        (
            ["--mqtts", "0", "--tls-certificate", "nowhere.pem", "--tls-key", "k"],
            "mqtts: nowhere.pem: No such file or directory",
        ),
        (["--tls-key", ""], "argument --tls-key: it must not be empty"),
    ],
)
def test_tls_without_its_files_is_one_line_and_exit_2(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    result = run("serve", "--memory", *NO_PROTOCOLS, *arguments, cwd=tmp_path)
    assert_one_line(result, EXIT_USAGE, text)


def test_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with serve("--data", str(tmp_path / "d"), *NO_PROTOCOLS):
        second = run("serve", "--data", str(tmp_path / "d"), *NO_PROTOCOLS)
        assert_one_line(second, EXIT_LOCKED, str(tmp_path / "d"))


def test_directory_of_a_killed_broker_can_be_used_again(tmp_path: Path) -> None:
    with serve("--data", str(tmp_path), *NO_PROTOCOLS) as (process, _):
        process.kill()
        process.wait(timeout=30)
    with serve("--data", str(tmp_path), *NO_PROTOCOLS) as (_, line):
        assert line.startswith("trivium ready")


def test_a_data_directory_that_cannot_be_used_is_exit_74(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("not a directory")
    result = run("serve", "--data", str(tmp_path / "file"), *NO_PROTOCOLS)
    assert_one_line(result, EXIT_IO, "cannot open")


def test_address_in_use_is_one_line_and_exit_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "--memory", *NO_PROTOCOLS, "--http", address)
    assert_one_line(result, EXIT_FAILED, f"http cannot listen on {address}")


def test_file_and_environment_reach_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text('[listen]\nmqtt = "off"\namqp = "off"\nnative = 0\n[storage]\nmode="memory"\n')
    with serve("--config", str(file), TRIVIUM_LISTEN__HTTP="off") as (_, line):
        assert re.fullmatch(r"trivium ready native=127\.0\.0\.1:\d+ data=memory\n", line)


def test_localhost_listens_on_both_loopback_addresses() -> None:
    with serve("--memory", *NO_PROTOCOLS, "--http", "localhost:0") as (_, line):
        match = re.search(r"http=127\.0\.0\.1:(\d+)", line)
        assert match
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, int(match[1])), timeout=10).close()


def test_hash_password_prints_what_the_configuration_takes() -> None:
    result = run("hash-password", stdin="pässword\n")
    assert result.returncode == EXIT_OK
    assert verify_password(result.stdout.rstrip("\n"), "pässword".encode())


@pytest.mark.parametrize("stdin", ["", "\n"])
def test_hash_password_takes_no_empty_one(stdin: str) -> None:
    result = run("hash-password", stdin=stdin)
    assert (result.returncode, result.stdout) == (EXIT_USAGE, "")
    assert result.stderr == "trivium hash-password: the password must not be empty\n"


def test_hash_password_prints_scram_keys() -> None:
    result = run("hash-password", "--scram", "--iterations", "4096", stdin="pässword\n")
    assert result.returncode == EXIT_OK
    keys = parse_keys(result.stdout.rstrip("\n"))
    assert keys == make_keys("pässword".encode(), 4096, keys.salt)


def test_hash_password_bounds_iterations() -> None:
    result = run("hash-password", "--scram", "--iterations", "4095", stdin="x\n")
    assert (result.returncode, result.stdout) == (EXIT_USAGE, "")
    assert result.stderr == "trivium hash-password: --iterations is from 4096 to 1000000\n"


@pytest.mark.parametrize("url", ["mqtt://127.0.0.1", "amqp://127.0.0.1", "trivium://127.0.0.1"])
@pytest.mark.parametrize("command", [["pub", "a", "b"], ["sub", "a"]])
def test_refused_connection_is_one_line_and_exit_1(url: str, command: list[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert_one_line(run(command[0], f"{url}:{port}", *command[1:]), EXIT_FAILED, "onnect")


# What the collector of cycles is left with


def test_what_a_start_has_loaded_is_never_walked_as_young() -> None:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        relax_interpreter()
        before = gc.get_stats()
        loaded: list[object] = [[number] for number in range(300_000)]
        begin_collecting()
        assert gc.get_stats()[0]["collections"] == before[0]["collections"]
        assert gc.get_count()[0] < gc.get_threshold()[0], "none is due either"
        assert gc.isenabled()
        assert any(each is loaded for each in gc.get_objects(generation=2))
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
