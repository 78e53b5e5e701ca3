"""`trivium doctor`: whether this machine is fit for the broker as configured, or what to do.

Nothing is changed but for a file that is written beside the data, and removed.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.clients import ClientError
from trivium.cli.control import Api
from trivium.cli.serve import configure
from trivium.config import Config
from trivium.errors import ConfigError, TriviumError
from trivium.listen import ControlListener, ListenerConfig
from trivium.observability.process import is_compiled, total_memory_bytes
from trivium.runtime.broker import Broker
from trivium.runtime.certificates import Certificates
from trivium.runtime.listeners import RESERVED_FILES
from trivium.runtime.unix_sockets import MOST_PATH_BYTES
from trivium.storage.errors import StorageLocked
from trivium.storage.files.directory import LOCK_FILE
from trivium.storage.files.filesystem import RealFileSystem

#: Time for the syncs that are measured, and the most of them.
SYNC_SECONDS: Final = 1.0
SYNCS: Final = 200
BLOCK: Final = bytes(range(256)) * 16
#: No device that keeps what it has without power is known to sync in less.
HONEST_SECONDS: Final = 15e-6
#: A publisher that waits for each acknowledgement waits so long.
SLOW_SECONDS: Final = 0.02
#: File systems that are in memory, and those that are on another machine.
IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
REMOTE: Final = frozenset(("9p", "afs", "ceph", "cifs", "fuse.sshfs", "nfs", "nfs4", "smb3"))
#: What adjtimex(2) returns while the clock is not synchronized.
TIME_ERROR: Final = 5

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing."""

    subject: str
    level: Level
    found: str
    #: what to do; "" where nothing is to be done
    advice: str = ""


def run(options: argparse.Namespace) -> int:
    """Print what is found; the exit code is 1 where the broker would not start, or not be safe."""
    try:
        config = configure(options)
        # What `serve` makes of it first, from the files that it names, and which touches nothing.
        Broker(config)
    except ConfigError as error:
        print(f"trivium doctor: {error}", file=sys.stderr)
        return EXIT_USAGE
    worst = EXIT_OK
    for finding in examine(config):
        if options.json:
            print(json.dumps(asdict(finding)), flush=True)
        else:
            print(f"{finding.level:8} {finding.subject:14} {finding.found}", flush=True)
            if finding.advice:
                print(f"{'':23} -> {finding.advice}", flush=True)
        if finding.level == "error":
            worst = EXIT_FAILED
    return worst


def examine(config: Config) -> Iterator[Finding]:
    """Look at one thing after the other."""
    yield _build()
    yield _event_loop()
    yield _open_files(config)
    yield _memory(config)
    yield _clock()
    if config.storage.mode == "disk":
        yield from _storage(config)
    running = _running(config)
    for listener in config.all_listeners():
        yield from _listener(listener, running)


def _build() -> Finding:
    if is_compiled():
        return Finding("build", "ok", "compiled")
    advice = "install a compiled wheel; or a C compiler, and trivium again"
    return Finding("build", "warning", "interpreted, which takes two to four times the CPU", advice)


def _event_loop() -> Finding:
    if find_spec("uvloop") is not None:
        return Finding("event loop", "ok", "uvloop")
    return Finding("event loop", "warning", "asyncio's own, which is slower", "pip install uvloop")


def _open_files(config: Config) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.max_connections + RESERVED_FILES
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding("open files", "ok", f"{hard:,} allowed" if hard >= 0 else "no limit")
    most = max(hard - RESERVED_FILES, hard // 2)
    return Finding(
        "open files",
        "warning",
        f"{hard:,} allowed: {most:,} connections instead of {config.limits.max_connections:,}",
        f"raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=) to {wanted:,}",
    )


def _memory(config: Config) -> Finding:
    total = total_memory_bytes()
    limits = config.limits
    high = limits.memory_high_bytes or int(limits.memory_high_fraction * total)
    if not high:
        advice = "set [limits] memory_high_fraction"
        return Finding("memory", "warning", "no limit: publishers are never paused", advice)
    found = f"{_size(total)}, publishers are paused from {_size(high)} on"
    if high > total * 0.9:
        return Finding(
            "memory", "error", found, "leave a tenth of the memory: [limits] memory_high_bytes"
        )
    if high < 256 << 20:
        advice = "give it more: a busy broker takes some 200 MiB before any backlog"
        return Finding("memory", "warning", found, advice)
    return Finding("memory", "ok", found)


def _clock() -> Finding:
    """Dates of messages, expiry and tokens go by it."""
    # struct timex begins with `modes`: all zero asks, and changes nothing.
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (AttributeError, OSError):
        state = -1
    if state < 0:
        return Finding("clock", "ok", "the system does not say whether it is synchronized")
    if state == TIME_ERROR:
        advice = "run an NTP client (systemd-timesyncd, chrony)"
        return Finding("clock", "warning", "not synchronized", advice)
    return Finding("clock", "ok", "synchronized")


def _storage(config: Config) -> Iterator[Finding]:
    directory = config.storage.data.absolute()
    place = directory
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        advice = "give it to the user of the broker: chown"
        yield Finding("data", "error", f"{place} cannot be written to", advice)
        return
    yield _in_use(directory)
    yield _file_system(place)
    free = shutil.disk_usage(place).free
    limit = config.limits.disk_free_bytes
    found = f"{_size(free)} free, publishers are paused below {_size(limit)}"
    if free < limit:
        yield Finding("disk", "error", found, "make room, or set [limits] disk_free_bytes")
    elif free < limit + (1 << 30):
        yield Finding("disk", "warning", found, "a journal takes some 600 MiB at times: make room")
    else:
        yield Finding("disk", "ok", found)
    if str(config.storage.fsync) != "always":
        found = f"{config.storage.fsync}: what is acknowledged can be lost"
        yield Finding("fsync", "warning", found, 'set [storage] fsync = "always"')
    try:
        yield _syncs(place)
    except OSError as error:
        # Who may write there may still be refused: by the kind of file system, or a quota.
        found = f"no file can be written in {place}: {os.strerror(error.errno or 0)}"
        yield Finding("sync", "error", found, "choose another directory: [storage] data")


def _in_use(directory: Path) -> Finding:
    lock = directory / LOCK_FILE
    if lock.exists():
        try:
            RealFileSystem().lock(str(lock)).release()
        except StorageLocked:
            return Finding("data", "ok", f"{directory}, of a broker that runs")
    return Finding("data", "ok", str(directory))


def _file_system(place: Path) -> Finding:
    kind = file_system_of(place, Path("/proc/self/mounts"))
    if kind in IN_MEMORY:
        advice = "choose a directory on a disk: [storage] data"
        return Finding("file system", "error", f"{kind} is in memory: nothing is kept", advice)
    if kind in REMOTE:
        found = f"{kind} is on another machine, which may acknowledge before it has synced"
        return Finding("file system", "warning", found, "choose a local disk: [storage] data")
    return Finding("file system", "ok", kind)


def file_system_of(place: Path, mounts: Path) -> str:
    """Kind of the file system that a directory is on, by the system's table; "unknown" without."""
    found, longest = "unknown", -1
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return found
    resolved = place.resolve()
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        # Blanks and the like stand there as \\040.
        mounted = Path(point.encode("latin-1", "replace").decode("unicode_escape"))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= longest:
            found, longest = kind, len(mounted.parts)
    return found


def _syncs(place: Path) -> Finding:
    """How long a write and a sync take, as each acknowledgement waits for."""
    with tempfile.TemporaryFile(dir=place) as file:
        # As the journal has it: room that is there already, so that no size is written.
        file.write(BLOCK * SYNCS)
        os.fsync(file.fileno())
        taken: list[float] = []
        end = time.perf_counter() + SYNC_SECONDS
        while len(taken) < SYNCS and (not taken or time.perf_counter() < end):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), BLOCK, len(taken) * len(BLOCK))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begin)
    return judged_syncs(taken)


def judged_syncs(taken: list[float]) -> Finding:
    """What some syncs say that took so many seconds."""
    median = statistics.median(taken)
    worst = sorted(taken)[int(len(taken) * 0.99)]
    found = f"write and sync of 4 KiB: {median * 1e3:.2f} ms, 99th percentile {worst * 1e3:.2f} ms"
    if median < HONEST_SECONDS:
        return Finding(
            "sync",
            "error",
            f"{found}: no disk is so fast, so it does not sync",
            "look for eatmydata, a volatile overlay, or a virtual disk with cache=unsafe",
        )
    if median > SLOW_SECONDS:
        advice = "each acknowledgement waits so long: a disk with a protected cache is faster"
        return Finding("sync", "warning", found, advice)
    return Finding("sync", "ok", found)


def _running(config: Config) -> dict[str, str]:
    """Where the broker listens that runs with this configuration, as it says itself:
    by name, one address of each."""
    control = config.control.listener(config.storage)
    if control is None:
        return {}
    try:
        found = Api(control.path).pages("listeners", {})
        return {item["name"]: item["address"] for item in found}
    except ClientError:
        return {}


def _listener(listener: ListenerConfig, running: dict[str, str]) -> Iterator[Finding]:
    if listener.is_unix:
        yield _unix(listener, running)
        if isinstance(listener, ControlListener):
            yield from _mode(listener)
    else:
        yield from _ports(listener, running)
    if listener.tls is not None:
        try:
            Certificates(listener.name, listener.tls, ())
        except TriviumError as error:
            yield Finding(listener.name, "error", str(error), "see `trivium tls self-signed`")


def _unix(listener: ListenerConfig, running: dict[str, str]) -> Finding:
    may_be_missing = isinstance(listener, ControlListener) and listener.may_be_missing
    if len(os.fsencode(listener.path)) > MOST_PATH_BYTES:
        level: Level = "warning" if may_be_missing else "error"
        text = f"the path of a Unix socket has at most {MOST_PATH_BYTES} bytes"
        return Finding(listener.name, level, text, "give it a shorter one")
    folder = Path(listener.path).parent
    if may_be_missing and not folder.exists():
        # The broker makes the data directory.
        return Finding(listener.name, "ok", f"{listener.address} is free")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            listener.name, "error", f"{folder} cannot be written to", "make it, or chown"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(listener.path) == 0:
            return _taken(listener.name, listener.address, listener.name in running)
    return Finding(listener.name, "ok", f"{listener.address} is free")


def _mode(listener: ControlListener) -> Iterator[Finding]:
    if listener.danger:
        advice = 'give it to a group: [control] mode = "0660", owner = "USER:GROUP"'
        yield Finding(listener.name, "warning", listener.danger, advice)


def _ports(listener: ListenerConfig, running: dict[str, str]) -> Iterator[Finding]:
    listen = listener.listen
    for host in listen.hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = f"{host} port {listen.port}"
        try:
            socket.create_server((host, listen.port), family=family).close()
        except PermissionError:
            advice = "ports below 1024 need CAP_NET_BIND_SERVICE, which the systemd unit gives"
            yield Finding(listener.name, "error", f"{place} is not allowed", advice)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                is_own = running.get(listener.name, "").endswith(f":{listen.port}")
                yield _taken(listener.name, place, is_own)
            else:
                advice = "see the addresses of this machine: ip address"
                yield Finding(
                    listener.name, "error", f"{place}: {os.strerror(error.errno or 0)}", advice
                )
        else:
            yield Finding(listener.name, "ok", f"{place} is free")


def _taken(name: str, place: str, is_own: bool) -> Finding:
    if is_own:
        return Finding(name, "ok", f"{place} is taken, by the broker that runs")
    advice = "by a broker that runs already; or else choose another, or end who has it (ss -ltnp)"
    return Finding(name, "warning", f"{place} is taken", advice)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
