"""`trivium serve`: one broker in the foreground, until a signal or a failed disk ends it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

from trivium import __version__
from trivium.cli import EXIT_DAMAGED, EXIT_FAILED, EXIT_IO, EXIT_LOCKED, EXIT_OK, EXIT_USAGE
from trivium.cli.configuration import load
from trivium.cli.service import ServiceManager
from trivium.common.installed import installed
from trivium.config import DEFAULT_PORTS, Config
from trivium.errors import ConfigError, InternalError, TriviumError
from trivium.listen import CONTROL
from trivium.observability.process import is_compiled
from trivium.runtime.broker import Broker
from trivium.runtime.logs import LogHandler
from trivium.runtime.server import loop_factory
from trivium.storage.errors import (
    StorageDamaged,
    StorageError,
    StorageKeyError,
    StorageLocked,
    StorageVersionMismatch,
)

logger = logging.getLogger(__name__)

#: Options that mean one listener each.
SHORT_LISTENERS: Final = (*DEFAULT_PORTS, *(f"{name}s" for name in DEFAULT_PORTS), "ws", "wss")

#: Young objects that the collector of cycles walks in one go. It takes some milliseconds.
YOUNG_OBJECTS: Final = 20_000


def run(options: argparse.Namespace) -> int:
    """Serve as the options say; the exit code."""
    try:
        config = configure(options)
    except ConfigError as error:
        return _fail(EXIT_USAGE, error)
    handler = LogHandler(config.log, sys.stderr)
    logging.basicConfig(level=config.log.level.upper(), handlers=[handler])
    _raise_file_limit()
    relax_interpreter()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_serve(config, handler, options.json))
        except ConfigError as error:
            return _fail(EXIT_USAGE, error)
        except StorageLocked as error:
            return _fail(EXIT_LOCKED, error)
        except StorageKeyError as error:
            return _fail(EXIT_USAGE, error)
        except StorageDamaged as error:
            advice = f"to save what can be saved, run: trivium repair {config.storage.data}"
            return _fail(EXIT_DAMAGED, f"{error}; {advice}")
        except StorageVersionMismatch as error:
            return _fail(EXIT_DAMAGED, error)
        except (StorageError, InternalError) as error:
            return _fail(EXIT_IO, error)
        except (TriviumError, OSError) as error:
            return _fail(EXIT_FAILED, error)


def configure(options: argparse.Namespace) -> Config:
    """The configuration from file, environment and options. Raises ConfigError."""
    listen = {name: getattr(options, name) for name in SHORT_LISTENERS}
    tls = {key: getattr(options, f"tls_{key}") for key in ("certificate", "key", "ca")}
    storage: dict[str, Any] = {}
    if options.memory:
        storage = {"mode": "memory"}
    elif options.data is not None:
        storage = {"mode": "disk", "data": options.data}
    return load(
        None if options.config is None else Path(options.config),
        os.environ,
        {
            "listen": {name: address for name, address in listen.items() if address is not None},
            "tls": {key: file for key, file in tls.items() if file is not None},
            "storage": storage,
        },
        protocols(),
        options_of_protocols(),
    )


def protocols() -> frozenset[str]:
    """Those for which adapters are installed, and HTTP."""
    return frozenset(installed("trivium.adapters").names) | {"http"}


def options_of_protocols() -> dict[str, type]:
    """The class of what can be set about each protocol."""
    return {entry.name: entry.load() for entry in installed("trivium.options")}


async def _serve(config: Config, log: LogHandler, is_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Broker(config) as broker:
        log.follow(broker.events)
        begin_collecting()
        loop.add_signal_handler(signal.SIGHUP, broker.reload)
        logger.info("Trivium %s, %s", __version__, "compiled" if is_compiled() else "interpreted")
        line = ready_line(broker)
        print(json.dumps(ready(broker)) if is_json else line, flush=True)
        manager = ServiceManager(os.environ)
        manager.ready(line)
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(broker.wait_failed())
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        manager.stopping()
        if failed.done():
            return _fail(EXIT_IO, failed.result())
        failed.cancel()
    return EXIT_OK


def ready(broker: Broker) -> dict[str, str]:
    """Where clients can connect, by the name of the listener, and where the data is."""
    storage = broker.config.storage
    # The control socket is for commands, which know where it is; and paths may have spaces.
    places = {name: place for name, place in broker.listeners.items() if name != CONTROL}
    return {**places, "data": "memory" if storage.mode == "memory" else str(storage.data)}


def ready_line(broker: Broker) -> str:
    """What is printed once connections are accepted; programs that start the broker read it."""
    places = ready(broker)
    return " ".join(["trivium ready", *(f"{name}={place}" for name, place in places.items())])


def _raise_file_limit() -> None:
    """Each connection takes a file descriptor, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def relax_interpreter() -> None:
    """Settings of the interpreter for one busy loop thread beside threads that wait for the disk.

    Messages, queue entries and what a client leaves form no cycles and are freed by their count.
    The collector walks only what is young, for what libraries leave; at its default threshold that
    would be every 700 objects in flight, a third of the core's time per message when measured. What
    has become old is never walked, since it may be millions of objects: that takes seconds. The
    switch interval is how long the writer thread waits for the interpreter's lock after each sync;
    at the default of 5 ms a busy loop starves it. Nothing is collected until ``begin_collecting``:
    a start makes millions of objects, and no garbage.
    """
    gc.disable()
    gc.set_threshold(YOUNG_OBJECTS, 1_000_000, 1_000_000)
    sys.setswitchinterval(0.001)


def begin_collecting() -> None:
    """Once all is loaded: collect from now on, with all that there is counted as old.

    As young objects they would be walked in one go, in some turn of the loop.
    """
    gc.freeze()
    gc.unfreeze()
    gc.enable()


def _fail(code: int, error: object) -> int:
    print(f"trivium: {error}", file=sys.stderr)
    return code
