"""Start the servers under test on ephemeral loopback ports, and end exactly what was started.

Every server gets a working directory of its own under one parent, so all of them write to the same
file system, and is the leader of a process group of its own, so what it starts ends with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from bench.amqp_clients import AmqpSetup
from bench.doors import PLAIN, TLS, WEBSOCKET
from bench.endpoints import Address

LOOPBACK: Final = "127.0.0.1"
STARTS: Final = 3
"""Times that a server is started whose port was taken meanwhile."""
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 20.0
REPOSITORY: Final = Path(__file__).resolve().parent.parent
COMPILED: Final = REPOSITORY / "build" / "compiled"
"""Where the compiled build of Trivium is, if there is one."""


class ServerError(Exception):
    """A server cannot be started here; the message says what is missing, in one line."""


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _group_stats(group: int) -> list[list[str]]:
    """Return ``/proc/PID/stat`` from its third field on, for each process of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[2] == str(group):
                found.append(fields)
    return found


def _is_group_alive(group: int) -> bool:
    return any(fields[0] != "Z" for fields in _group_stats(group))


class Server:
    """A server process: ``start``, its ``addresses`` by protocol, ``stop``."""

    name = ""
    protocols: frozenset[str] = frozenset()
    doors: frozenset[str] = frozenset({PLAIN})
    """What a load can reach it through: those of :mod:`bench.doors`."""
    is_broker = True
    """False for the relay: its delays mean nothing, and it cannot cross protocols."""

    def __init__(
        self, directory: Path, cores: frozenset[int] | None = None, door: str = PLAIN
    ) -> None:
        self.directory = directory / self.name
        self.door = door
        """What its addresses are behind. Nothing else is served, as far as that is possible."""
        self.addresses: dict[str, Address] = {}
        self.wrapper: tuple[str, ...] = ()
        """A command to run the server's under, with its arguments."""
        self.environment: dict[str, str] = {}
        """What the server's environment has besides this process's."""
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            ServerError: it is not installed, or did not come up.
        """
        self.directory.mkdir(parents=True)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        raise NotImplementedError

    def _address(self, port: int) -> Address:
        return Address(LOOPBACK, port, self.door)

    def _certificates(self) -> dict[str, Path]:
        """Write what :func:`make_certificates` makes, and say where: ECDSA of P-256 for all."""
        # It needs a package that only this needs.
        from trivium.cli.certificates import make_certificates

        files = {}
        for name, data in make_certificates([]).items():
            files[name] = self.directory / name
            files[name].write_bytes(data)
            # RabbitMQ and Mosquitto may run as somebody else.
            files[name].chmod(0o644)
        return files

    def version(self) -> str:
        """Return the server's version as text."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the processes that this object started, and remove their files."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            # The group is ours alone: what the server itself left behind goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + STOP_SECONDS
            while _is_group_alive(process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def process_id(self) -> int:
        """The process that was started, which leads the server's process group."""
        return self._processes[-1].pid

    def cpu_seconds(self) -> float:
        """Return the processor time used so far by the server's process group."""
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in _group_stats(self.process_id))
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Return the resident memory of the server's process group."""
        pages = sum(int(fields[21]) for fields in _group_stats(self.process_id))
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdout: IO[bytes] | int | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [*self.wrapper, *command],
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env={**os.environ, **self.environment, **(environment or {})},
                start_new_session=True,
            )
        if self._cores is not None:
            os.sched_setaffinity(process.pid, self._cores)
        self._processes.append(process)
        return process

    def _fail(self, reason: str) -> ServerError:
        with contextlib.suppress(OSError):
            lines = (self.directory / "log").read_text(errors="replace").split("\n")
            reason += "".join(f" | {line.strip()}" for line in lines[-4:] if line.strip())
        return ServerError(f"{self.name}: {reason}")

    def _wait_for(self, process: subprocess.Popen[bytes], address: Address) -> None:
        """Wait until something listens on ``address``."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(address[:2], timeout=1).close()
                return
            if process.poll() is not None:
                raise self._fail(f"ended with {process.returncode} at start")
            if time.monotonic() > deadline:
                raise self._fail(f"not listening after {START_SECONDS:.0f} s")
            time.sleep(0.05)


def _program(name: str, package: str, *places: str) -> str:
    path = shutil.which(name, path=os.pathsep.join((*places, os.environ["PATH"], "/usr/sbin")))
    if path is None:
        raise ServerError(f"{name} is not installed; on Debian: apt-get install {package}")
    return path


class Mosquitto(Server):
    """Debian's Mosquitto in memory, with unlimited queues so that it has no reason to drop."""

    name = "mosquitto"
    protocols = frozenset({"mqtt"})
    doors = frozenset({PLAIN, TLS, WEBSOCKET})

    def _launch(self) -> None:
        port = free_port()
        configuration = self.directory / "mosquitto.conf"
        listener = f"listener {port} {LOOPBACK}\n"
        if self.door == TLS:
            files = self._certificates()
            listener += f"certfile {files['server.pem']}\nkeyfile {files['server.key']}\n"
        elif self.door == WEBSOCKET:
            # It ends where there is no other listener too, and listens everywhere without the
            # family.
            listener += "protocol websockets\nsocket_domain ipv4\n"
            listener += f"listener {free_port()} {LOOPBACK}\n"
        configuration.write_text(
            f"{listener}"
            "allow_anonymous true\n"
            "persistence false\n"
            "set_tcp_nodelay true\n"
            "max_queued_messages 0\n"
            "max_inflight_messages 1000\n"
            "sys_interval 0\n"
            "log_type none\n"
            "user root\n"
        )
        process = self._spawn([_program("mosquitto", "mosquitto"), "-c", str(configuration)])
        self.addresses = {"mqtt": self._address(port)}
        self._wait_for(process, self.addresses["mqtt"])

    def version(self) -> str:
        result = subprocess.run(
            [_program("mosquitto", "mosquitto"), "-h"], capture_output=True, text=True, check=False
        )
        return result.stdout.partition("\n")[0].removeprefix("mosquitto version ")


class RabbitMq(Server):
    """Debian's RabbitMQ as a node of its own with its own epmd and the MQTT plug-in."""

    name = "rabbitmq"
    protocols = frozenset({"amqp", "mqtt"})
    doors = frozenset({PLAIN, TLS})
    plugins: tuple[str, ...] = ("rabbitmq_mqtt",)

    def _more_settings(self) -> str:
        """Lines of its configuration."""
        return ""

    def start(self) -> None:
        # It listens seconds after its ports were free: somebody else may have one by then.
        for _ in range(STARTS - 1):
            try:
                super().start()
            except ServerError as error:
                if "could_not_start_listener" not in str(error):
                    raise
            else:
                return
        super().start()

    def _launch(self) -> None:
        program = self._program()
        epmd_port, amqp_port, mqtt_port = free_port(), free_port(), free_port()
        kind = "ssl" if self.door == TLS else "tcp"
        secure = ""
        if self.door == TLS:
            files = self._certificates()
            secure = (
                "listeners.tcp = none\n"
                "mqtt.listeners.tcp = none\n"
                f"ssl_options.cacertfile = {files['ca.pem']}\n"
                f"ssl_options.certfile = {files['server.pem']}\n"
                f"ssl_options.keyfile = {files['server.key']}\n"
            )
        (self.directory / "rabbitmq.conf").write_text(
            f"{secure}"
            f"listeners.{kind}.bench = {LOOPBACK}:{amqp_port}\n"
            f"mqtt.listeners.{kind}.bench = {LOOPBACK}:{mqtt_port}\n"
            "mqtt.prefetch = 1000\n"
            "log.file.level = error\n"
            "log.console = false\n"
            f"{self._more_settings()}"
        )
        (self.directory / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        home = self.directory / "home"
        home.mkdir()
        environment = {
            "HOME": str(home),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_NODENAME": f"bench{secrets.token_hex(4)}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.directory / "generated"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log.d"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }
        epmd = self._spawn(
            [_program("epmd", "rabbitmq-server"), "-address", LOOPBACK, "-port", str(epmd_port)]
        )
        self._wait_for(epmd, Address(LOOPBACK, epmd_port))
        process = self._spawn([program], environment)
        self.addresses = {"amqp": self._address(amqp_port), "mqtt": self._address(mqtt_port)}
        for address in self.addresses.values():
            self._wait_for(process, address)
        AmqpSetup(self.addresses["amqp"]).close()

    @staticmethod
    def _program() -> str:
        # The one in /usr/sbin is a wrapper that changes user and environment.
        return _program("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin")

    def version(self) -> str:
        library = Path(self._program()).resolve().parent.parent.name
        return library.removeprefix("rabbitmq_server-")


class Trivium(Server):
    """``trivium serve`` from the compiled build, in memory or on disk with its default fsync."""

    name = "trivium"
    protocols = frozenset({"mqtt", "amqp", "native"})
    doors = frozenset({PLAIN, TLS, WEBSOCKET})
    is_compiled = True
    has_http = False

    def __init__(
        self,
        directory: Path,
        cores: frozenset[int] | None = None,
        door: str = PLAIN,
        *,
        on_disk: bool = False,
        build: Path | None = None,
    ) -> None:
        super().__init__(directory, cores, door)
        self._on_disk = on_disk
        self.environment = {"PYTHONPATH": self.python_path(build)}
        self._version = ""

    @classmethod
    def python_path(cls, build: Path | None = None) -> str:
        """Where Python finds the packages: in ``build``, without one in the one of this source."""
        # Empty is as good as unset: the interpreted server runs what is installed, the source.
        return str((build or COMPILED).absolute()) if cls.is_compiled else ""

    def restart(self, number: signal.Signals) -> float:
        """End the process with a signal and start it on the same data; seconds to its ready line.

        Raises:
            ServerError: it did not end, or did not come up.
        """
        process = self._processes.pop()
        process.send_signal(number)
        process.communicate(timeout=STOP_SECONDS)
        start = time.perf_counter()
        self._start_process()
        return time.perf_counter() - start

    def _launch(self) -> None:
        self._probe()
        self._start_process()

    def _start_process(self) -> None:
        storage = ("--data", str(self.directory / "data")) if self._on_disk else ("--memory",)
        names = {PLAIN: ("mqtt", "amqp", "native"), TLS: ("mqtts", "amqps"), WEBSOCKET: ("ws",)}
        # What the listener is called, by protocol.
        served = dict(zip(("mqtt", "amqp", "native"), names[self.door], strict=False))
        ports = ["--mqtt", "off", "--amqp", "off", "--native", "off", "--http", "off"]
        if self.has_http:
            served["http"] = "http"
        for name in served.values():
            ports += [f"--{name}", "0"]
        if self.door == TLS and not (self.directory / "server.pem").exists():
            self._certificates()
        if self.door == TLS:
            files = (self.directory / "server.pem", self.directory / "server.key")
            ports += ["--tls-certificate", str(files[0]), "--tls-key", str(files[1])]
        command = [sys.executable, "-m", "trivium", "serve", *ports, *storage]
        process = self._spawn(command, stdout=subprocess.PIPE)
        found = dict(word.split("=", 1) for word in self._ready_line(process).split()[2:])
        for protocol, name in served.items():
            host, _, port = found[name].rpartition(":")
            self.addresses[protocol] = Address(host, int(port), self.door)

    def _probe(self) -> None:
        """Find out the version, and that the build is the one asked for."""
        program = (
            "import trivium, trivium.observability.process as process;"
            " print(trivium.__version__, process.is_compiled())"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        self._version, _, compiled = result.stdout.strip().partition(" ")
        if result.returncode or compiled != str(self.is_compiled):
            wanted = "compiled" if self.is_compiled else "interpreted"
            error = result.stderr.strip().rpartition("\n")[2]
            raise ServerError(f"no {wanted} Trivium (./dev build makes it) {error}".rstrip())

    def _ready_line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        # Not select(): a process with many connections has descriptors that are too large for it.
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        line = process.stdout.readline().decode() if waiting.poll(START_SECONDS * 1000) else ""
        if not line.startswith("trivium ready "):
            process.terminate()
            process.wait()
            raise self._fail(f"no ready line, but {line!r}")
        return line

    def version(self) -> str:
        return self._version


class TriviumInterpreted(Trivium):
    """The same source without the compiled modules."""

    name = "trivium-interpreted"
    is_compiled = False


class Relay(Server):
    """No broker: :mod:`bench.relay`, to see how fast the load generator itself is."""

    name = "relay"
    is_broker = False
    protocols = frozenset({"mqtt", "amqp"})

    def _launch(self) -> None:
        mqtt_port, amqp_port = free_port(), free_port()
        process = self._spawn(
            [sys.executable, "-m", "bench.relay", str(mqtt_port), str(amqp_port)],
            {"PYTHONPATH": str(REPOSITORY)},
        )
        self.addresses = {
            "mqtt": Address(LOOPBACK, mqtt_port),
            "amqp": Address(LOOPBACK, amqp_port),
        }
        for address in self.addresses.values():
            self._wait_for(process, address)

    def version(self) -> str:
        return "-"
