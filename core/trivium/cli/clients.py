"""The commands that are clients of a broker, for any protocol that has a client here.

The entry-point group `trivium.clients` maps a URL's scheme to a function that takes a `Server` and
returns a `Client`, so the core knows none of the protocols. A scheme with an `s` behind it is the
same by TLS. Payloads go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import errno
import json
import logging
import os
import re
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.server_options import url_password
from trivium.common.client_tls import ClientTls, TlsError, tls_error_in, tls_reason
from trivium.common.installed import installed
from trivium.config import join_address

#: publishes from standard input that may wait for their acknowledgement at a time
MAX_IN_FLIGHT: Final = 256
#: time for which TLS is tried after a client that did not speak it has failed, at most twice
PROBE_SECONDS: Final = 2.0
READ_SIZE: Final = 64 * 1024


class ClientError(Exception):
    """The server refused, or the connection failed; the text is one line."""


class UsageError(Exception):
    """The URL or an option does not fit this protocol; the text is one line."""


class _OutputClosed(Exception):
    """The reader of standard output has seen enough; what it did not see is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect, from the URL. `path` is what follows the first slash, decoded.

    `tls` is how to speak TLS; None is not to.
    """

    host: str
    port: int | None
    username: str | None
    password: str | None = field(repr=False)
    path: str
    tls: ClientTls | None = None

    def tls_context(self, *applications: str) -> ssl.SSLContext | None:
        """What OpenSSL is to do, with the names of ALPN; None without TLS. Raises UsageError."""
        try:
            return None if self.tls is None else self.tls.context(*applications)
        except TlsError as error:
            raise UsageError(str(error)) from None

    def cannot_connect(self, default_port: int, error: Exception) -> ClientError:
        """The error to raise when there is no connection because of ``error``.

        It may block for some seconds, to see whether it is TLS that is spoken there.
        """
        port = default_port if self.port is None else self.port
        place = join_address(self.host, port)
        # Libraries put the name of the system's call, or the number, in front of the reason.
        number = error.errno if isinstance(error, OSError) else None
        tls_error = tls_error_in(error)
        if tls_error is not None:
            reason = tls_reason(tls_error)
        elif number is not None and number in errno.errorcode:
            reason = os.strerror(number)
        elif self.tls is None and speaks_tls(self.host, port):
            reason = "TLS is spoken there, so the URL needs an s behind its scheme"
        else:
            reason = re.sub(r"^\[Errno -?[0-9]+\] ", "", str(error))
        return ClientError(f"cannot connect to {place}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What the options say about every message that is published."""

    address: str
    qos: int
    exchange: str
    retain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What is to be received: a pattern, or a queue, or a stream from an offset."""

    address: str
    qos: int
    exchange: str
    is_queue: bool
    #: an offset, `first`, `next`, or None when it is no stream
    offset: str | None
    #: of a stream: topics, with the wildcards + and #; None: all
    topic_filter: str | None = None


#: Takes an address and a payload; False ends the subscription once the message is acknowledged.
Handler = Callable[[str, bytes], bool]


class Client(Protocol):
    """One connected client of one protocol. Each method may raise ClientError and UsageError."""

    async def publish(self, publication: Publication, payload: bytes) -> None:
        """Publish and wait for what acknowledges it at this QoS."""

    async def subscribe(
        self, subscription: Subscription, subscribed: Callable[[], None], handle: Handler
    ) -> None:
        """Receive until the handler returns False; acknowledge what it has handled."""


def speaks_tls(host: str, port: int) -> bool:
    """Whether TLS is spoken there, to tell somebody who did not; it blocks for some seconds."""
    context = ClientTls(verify=False).context()
    try:
        with (
            socket.create_connection((host, port), PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


Connect = Callable[[Server], AbstractAsyncContextManager[Client]]


def run(options: argparse.Namespace) -> int:
    """Do as a client what the options say; the exit code."""
    # The clients' libraries log what they also raise.
    logging.disable()
    try:
        server, opened = open_url(options, "trivium.clients")
        connect: Connect = opened
        asyncio.run(_run(options, server, connect))
    except UsageError as error:
        return _fail(EXIT_USAGE, options, error)
    except ClientError as error:
        return _fail(EXIT_FAILED, options, error)
    except _OutputClosed:
        # Keep the interpreter from flushing what is left when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _fail(code: int, options: argparse.Namespace, error: Exception) -> int:
    print(f"trivium {options.command}: {error}", file=sys.stderr)
    return code


def open_url(options: argparse.Namespace, group: str) -> tuple[Server, Any]:
    """Where the URL leads, and what the entry-point group has for its scheme. Raises UsageError."""
    url: str = options.url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"not a URL: {error}") from None
    clients = {entry.name: entry for entry in installed(group)}
    scheme = parts.scheme
    is_tls = scheme not in clients
    if is_tls:
        scheme = scheme.removesuffix("s")
    if scheme not in clients:
        known = ", ".join(f"{name}[s]://" for name in sorted(clients))
        raise UsageError(f"{_without_password(url)!r} does not begin with one of {known}")
    try:
        found = clients[scheme].load()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{scheme}:// needs the package {error.name}: pip install 'trivium[cli]'"
        ) from None
    username, password = _credentials(options, parts)
    server = Server(
        parts.hostname or "localhost",
        port,
        username,
        password,
        unquote(parts.path.removeprefix("/")),
        tls_of(options, scheme, is_tls),
    )
    return server, found


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//...@", url)


def _credentials(options: argparse.Namespace, parts: SplitResult) -> tuple[str | None, str | None]:
    """The user and the password, of the URL or from beside it. Raises UsageError."""
    username = None if parts.username is None else unquote(parts.username)
    if parts.password is not None:
        if options.password_file is not None:
            raise UsageError("the URL has a password, and so has --password-file")
        return username, unquote(parts.password)
    try:
        password = url_password(options)
    except OSError as error:
        raise UsageError(f"{options.password_file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    # Without a user it is a token or an API key.
    return ("" if username is None and password is not None else username), password


def tls_of(options: argparse.Namespace, scheme: str, is_tls: bool) -> ClientTls | None:
    """How to speak TLS, by the options. Raises UsageError."""
    try:
        tls = ClientTls(
            ca=options.tls_ca,
            certificate=options.tls_certificate,
            key=options.tls_key,
            server_name=options.tls_server_name,
            verify=not options.tls_insecure,
        )
    except TlsError as error:
        raise UsageError(str(error)) from None
    if is_tls:
        return tls
    if tls != ClientTls():
        raise UsageError(f"options of TLS need a URL that begins with {scheme}s://")
    return None


async def _run(options: argparse.Namespace, server: Server, connect: Connect) -> None:
    """The command, until it is done or a signal ends it."""
    command = _publish if options.command == "pub" else _subscribe
    task = asyncio.create_task(command(options, server, connect))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass


async def _publish(options: argparse.Namespace, server: Server, connect: Connect) -> None:
    publication = Publication(
        address=options.address, qos=options.qos, exchange=options.exchange, retain=options.retain
    )
    async with connect(server) as client:
        if options.payload is not None:
            await client.publish(publication, options.payload.encode(errors="surrogateescape"))
            _published(options, 1)
            return
        in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)

        count = 0

        async def publish(line: bytes) -> None:
            nonlocal count
            try:
                await client.publish(publication, line)
                count += 1
            finally:
                in_flight.release()

        try:
            async with asyncio.TaskGroup() as tasks:
                async for line in _lines():
                    await in_flight.acquire()
                    tasks.create_task(publish(line))
        except* (ClientError, UsageError) as errors:
            raise errors.exceptions[0] from None
        _published(options, count)


def _published(options: argparse.Namespace, count: int) -> None:
    if options.json:
        print(json.dumps({"published": count}))


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input, without their ends.

    A thread reads them, since not everything that can be standard input can be polled; a daemon, so
    that a signal ends the command while it waits. It reads the descriptor itself: the interpreter
    could not exit while a thread holds the lock of `sys.stdin`.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_IN_FLIGHT)

    def put(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()

    def read() -> None:
        rest = b""
        while data := os.read(sys.stdin.fileno(), READ_SIZE):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                put(line.removesuffix(b"\r"))
        if rest:
            put(rest)
        put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line


async def _subscribe(options: argparse.Namespace, server: Server, connect: Connect) -> None:
    subscription = Subscription(
        address=options.address,
        qos=options.qos,
        exchange=options.exchange,
        is_queue=options.queue,
        offset=options.offset,
        topic_filter=options.topic_filter,
    )
    if options.queue and options.offset is not None:
        raise UsageError("--queue and --from exclude each other")
    if options.topic_filter is not None and options.offset is None:
        raise UsageError("--filter chooses records of a stream: it needs --from")
    output = sys.stdout.buffer
    remaining: int | None = options.count

    def subscribed() -> None:
        if options.verbose:
            print(f"subscribed to {options.address}", file=sys.stderr, flush=True)

    def handle(address: str, payload: bytes) -> bool:
        nonlocal remaining
        if options.json:
            payload = json.dumps(as_json(address, payload)).encode()
        elif options.verbose:
            payload = address.encode(errors="surrogateescape") + b" " + payload
        try:
            output.write(payload + b"\n")
            output.flush()
        except BrokenPipeError:
            raise _OutputClosed from None
        if remaining is not None:
            remaining -= 1
        return remaining != 0

    async with connect(server) as client:
        await client.subscribe(subscription, subscribed, handle)


def as_json(address: str, payload: bytes) -> dict[str, str]:
    """A message as JSON has it: a payload that is no text is base64."""
    try:
        return {"address": address, "payload": payload.decode()}
    except UnicodeDecodeError:
        return {"address": address, "payload_base64": base64.b64encode(payload).decode()}
