"""What the broker listens on: the installed protocols that are configured, and HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trivium.common.installed import installed
from trivium.errors import ConfigError, TriviumError
from trivium.listen import ControlListener, ListenerConfig, join_address
from trivium.runtime.adapter import Adapter, Listener, WebSocketTerms
from trivium.runtime.certificates import Certificates
from trivium.runtime.sockets import SocketDriver
from trivium.runtime.tls import TlsLayer
from trivium.runtime.unix_sockets import bind_unix, remove_socket

if TYPE_CHECKING:
    from trivium.observability.api import Api
    from trivium.observability.browsers import File
    from trivium.observability.http import HttpServer
    from trivium.runtime.server import Server
    from trivium.security.sessions import Sessions

logger = logging.getLogger(__name__)

HTTP: Final = "http"
#: What answers the HTTP API. It stands above this, and is loaded where HTTP is listened to.
MANAGEMENT: Final = "trivium.management.management"
#: What has the files of the dashboard.
DASHBOARD: Final = "trivium.management.dashboard"
#: What HTTP is called where TLS negotiates the protocol.
HTTP_ALPN: Final = "http/1.1"

#: Ticks, of a second each, between two looks at the files of certificates.
REFRESH_TICKS: Final = 5

#: Connections that the kernel keeps for us while a turn lasts.
BACKLOG: Final = 1024

#: Free ports that are looked at for one that is free on each address of a listener.
PORTS_TRIED: Final = 16

#: File descriptors that connections leave to storage and HTTP, and to those that the kernel hands
#: over in one turn before they can be refused; of a process with few, half.
RESERVED_FILES: Final = BACKLOG + 256


def load_http(listeners: Iterable[ListenerConfig]) -> None:
    """Import what HTTP needs, where it is listened to.

    It is much. Once the storage is open its threads are at work, and each file that is read would
    give the interpreter lock up to them.
    """
    if any(config.protocol == HTTP for config in listeners):
        for name in ("trivium.observability.http", "trivium.runtime.exposition", MANAGEMENT):
            import_module(name)


class Listeners:
    """Those of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker
        # By the name of the listener.
        self._listeners: dict[str, list[asyncio.AbstractServer]] = {}
        self._http_listeners: list[asyncio.AbstractServer] = []
        self._http: list[HttpServer] = []
        self._certificates: list[Certificates] = []
        self._api: Api | None = None
        # Unix sockets: where they are, and which files.
        self._paths: list[tuple[str, int]] = []
        self._ticks = 0
        self._is_refreshing = False
        # Whether they are to be read again once more.
        self._is_wanted = False

    async def start(self) -> None:
        """Listen as configured. Raises TriviumError where that is not possible."""
        for config in self._broker.config.all_listeners():
            await self.add(config)

    async def add(self, config: ListenerConfig) -> None:
        """Have one more listener. Raises TriviumError where that is not possible."""
        # What its files are is found out before anything is bound.
        if config.protocol == HTTP:
            take = await self._http_taker(config, list(self._broker.adapters.values()))
            listeners = self._http_listeners
        else:
            take = self._taker(self._server.adapter(config.protocol), Listener(config))
            listeners = self._listeners.setdefault(config.name, [])
        for bound in self._sockets(config):
            listeners.append(await self._listen(take, bound))

    def close(self) -> None:
        """Accept no more clients of a protocol."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.close()
        self._listeners.clear()
        for path, inode in self._paths:
            remove_socket(path, inode)
        self._paths.clear()

    def remove(self, name: str) -> None:
        """Have a listener of a protocol no more; its clients that are there stay."""
        for listener in self._listeners.pop(name):
            listener.close()
        del self._broker.listeners[name]

    def tick(self) -> None:
        """About once a second: certificates whose files have changed are read again."""
        self._ticks += 1
        if self._ticks % REFRESH_TICKS == 0:
            self._refresh(False)

    def reload(self) -> None:
        """Read the certificates again."""
        self._refresh(True)

    def _refresh(self, is_forced: bool) -> None:
        if not self._certificates or self._is_refreshing:
            self._is_wanted = self._is_wanted or is_forced
            return
        self._is_refreshing = True
        found = list(self._certificates)

        def work() -> bool:
            changed = [certificates for certificates in found if certificates.refresh(is_forced)]
            return bool(changed)

        self._server.driver.run_blocking(work, self._refreshed)

    def _refreshed(self, is_changed: bool) -> None:
        self._is_refreshing = False
        if is_changed:
            for certificates in self._certificates:
                certificates.take()
        if self._is_wanted:
            self._is_wanted = False
            self._refresh(True)

    async def stop_http(self) -> None:
        """End the HTTP servers, which answer until then."""
        for listener in self._http_listeners:
            listener.close()
        for server in self._http:
            await server.stop()

    async def _listen(
        self, take: Callable[[], Any], bound: socket.socket
    ) -> asyncio.AbstractServer:
        """Accept clients of one socket, each for whoever is to ``take`` it."""
        loop = asyncio.get_running_loop()
        driver = self._server.driver

        def accept() -> asyncio.Protocol:
            return driver.accept(take)

        if bound.family == socket.AF_UNIX:
            return await loop.create_unix_server(accept, sock=bound, backlog=BACKLOG)
        return await loop.create_server(accept, sock=bound, backlog=BACKLOG)

    def _taker(self, adapter: Adapter, listener: Listener) -> Callable[[], Any]:
        """Makes what a client of a listener is served by, outermost first."""
        server = self._server
        config = listener.config
        make = self._maker(adapter, listener)
        # A WebSocket begins as HTTP (RFC 6455, 4.1).
        application = HTTP_ALPN if config.websocket else adapter.name
        certificates = self._certificates_of(config, application)
        if certificates is None:
            return self._behind_proxies(config, lambda: make(True))

        def take() -> TlsLayer:
            return TlsLayer(server, listener, certificates, make(False), False)

        return self._behind_proxies(config, take)

    def _maker(self, adapter: Adapter, listener: Listener) -> Callable[[bool], Any]:
        """Makes what speaks the protocol; it is told whether it is outermost."""
        server = self._server
        config = listener.config
        if not config.websocket:
            return lambda is_outermost: SocketDriver(server, adapter, listener, is_outermost)
        if adapter.websocket is None:
            raise ConfigError(f"{config.name}: {adapter.name} is not spoken over WebSocket")
        from trivium.runtime.websocket import Terms, Upgrade

        terms = Terms.of(config, config.websocket, adapter.websocket)
        return lambda is_outermost: Upgrade(server, listener, adapter, terms, is_outermost)

    def _upgrader(
        self, adapter: Adapter, listener: Listener, protocol: WebSocketTerms
    ) -> Callable[[str], Any]:
        """Makes it for those who ask for one over HTTP; it is told where they are counted."""
        from trivium.runtime.websocket import Terms, Upgrade

        server = self._server
        config = listener.config
        terms = Terms.of(config, protocol.path, protocol)
        return lambda counted: Upgrade(server, listener, adapter, terms, True, counted)

    def _behind_proxies(self, config: ListenerConfig, take: Callable[[], Any]) -> Callable[[], Any]:
        """What ``take`` makes, behind the header of a proxy where the listener is for proxies."""
        if not config.proxy_protocol:
            return take
        from trivium.runtime.proxy_protocol import ProxyLayer

        server = self._server
        networks = tuple(ip_network(text) for text in config.proxy_protocol)
        return lambda: ProxyLayer(server, config.name, networks, take)

    def _certificates_of(self, config: ListenerConfig, application: str) -> Certificates | None:
        """Those of a listener with TLS. Raises ConfigError where the files are wrong."""
        if config.tls is None:
            return None
        try:
            # A client that does not negotiate its protocol, or knows another name for it, is
            # served all the same (RFC 7301).
            found = Certificates(config.name, config.tls, (application,))
        except ConfigError as error:
            raise ConfigError(f"{config.name}: {error}") from None
        self._certificates.append(found)
        return found

    async def _http_taker(
        self, config: ListenerConfig, adapters: list[Adapter]
    ) -> Callable[[], Any]:
        """Makes what a client of an HTTP listener is served by, outermost first."""
        if config.websocket:
            raise ConfigError(f"{config.name}: WebSockets are served over HTTP without `websocket`")
        from trivium.observability.http import HttpServer, Metrics
        from trivium.runtime.exposition import PATHS, metrics

        server = self._server
        broker = self._broker
        counted = broker.http
        certificates = self._certificates_of(config, HTTP_ALPN)
        listener = Listener(config)
        sessions, files = self._pages(config)
        http = HttpServer(
            server.driver,
            broker.authenticator,
            broker.permissions,
            broker.unready,
            Metrics(PATHS, lambda path, query: metrics(broker, path, query), counted),
            config,
            broker.config.limits.handshake_seconds,
            {
                found.path: self._upgrader(adapter, listener, found)
                for adapter in adapters
                if (found := adapter.websocket) is not None
                and not isinstance(config, ControlListener)
            },
            self._management(),
            broker.config.http.path_prefix,
            sessions=sessions,
            files=files,
            addresses=server.admission if certificates is None else None,
        )
        self._http.append(http)
        await http.start()
        if certificates is None:
            return self._behind_proxies(config, http.connect)

        def take() -> TlsLayer:
            return TlsLayer(server, listener, certificates, http.connect(), True)

        return self._behind_proxies(config, take)

    def _management(self) -> Api:
        """What answers the HTTP API, the same on all listeners."""
        if self._api is None:
            made: Api = import_module(MANAGEMENT).Management(self._broker, self._server.driver.call)
            self._api = made
        return self._api

    def _pages(
        self, config: ListenerConfig
    ) -> tuple[Sessions, Mapping[str, File]] | tuple[None, None]:
        """Sessions of browsers and the files that these are shown; no browser comes by the control
        socket."""
        if isinstance(config, ControlListener):
            return None, None
        return self._broker.authentication.sessions, import_module(DASHBOARD).files()

    def _sockets(self, config: ListenerConfig) -> list[socket.socket]:
        """Those of a listener; none where it is one that the broker can do without, and cannot be.

        Raises TriviumError.
        """
        try:
            return self._bind(config)
        except TriviumError as error:
            if isinstance(config, ControlListener) and config.may_be_missing:
                logger.warning("commands cannot reach this broker by a socket: %s", error)
                return []
            raise

    def _bind(self, config: ListenerConfig) -> list[socket.socket]:
        """Sockets bound to the listener's addresses, all on one port; raises TriviumError."""
        name = config.name
        if config.is_unix:
            bound = bind_unix(config)
            if isinstance(config, ControlListener) and config.danger:
                logger.warning("%s: %s", name, config.danger)
            self._paths.append((config.path, Path(config.path).stat().st_ino))
            self._broker.listeners[name] = config.address
            return [bound]
        listen = config.listen
        for left in range(PORTS_TRIED - 1, -1, -1):
            sockets = _bind_port(name, listen.hosts, listen.port, left > 0)
            if sockets:
                break
        port = sockets[0].getsockname()[1]
        self._broker.listeners[name] = join_address(listen.hosts[0], port)
        return sockets


def _bind_port(name: str, hosts: Sequence[str], port: int, may_try: bool) -> list[socket.socket]:
    """Sockets for these addresses, on the same port. None where any port will do, somebody has the
    one that was found on another of the addresses, and others ``may`` be tried."""
    is_any = port == 0
    sockets: list[socket.socket] = []
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sockets.append(socket.create_server((host, port), family=family, backlog=BACKLOG))
        except OSError as error:
            if not sockets:
                raise TriviumError(
                    f"{name} cannot listen on {join_address(host, port)}: {error.strerror}"
                ) from None
            if is_any and may_try and error.errno == errno.EADDRINUSE:
                for each in sockets:
                    each.close()
                return []
            # "localhost" asks for ::1 too, which a machine without IPv6 does not have.
            logger.info("%s does not listen on %s: %s", name, host, error)
            continue
        port = sockets[-1].getsockname()[1]
    return sockets


def connection_limit(configured: int) -> int:
    """As many connections as are configured, or as leave the storage files to open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return configured
    allowed = max(files - RESERVED_FILES, files // 2)
    if allowed < configured:
        logger.debug("%d connections at most, by the limit of %d open files", allowed, files)
    return min(configured, allowed)


def inside_client() -> EntryPoint | None:
    """What connects clients of this process, by the name of their protocol; None for nothing."""
    return next(iter(installed("trivium.inside")), None)


def load_adapters(
    listeners: Iterable[ListenerConfig], options: Mapping[str, object]
) -> list[Adapter]:
    """The installed adapters that the configuration names, in a stable order, with what it sets
    about them.

    Raises ConfigError when it names a protocol that nothing installed provides, or whose adapter
    does not load.
    """
    found = {entry.name: entry for entry in installed("trivium.adapters")}
    adapters: list[Adapter] = []
    for name in dict.fromkeys(listener.protocol for listener in listeners):
        if name == HTTP:
            continue
        if name not in found:
            raise ConfigError(f"no adapter for the protocol {name!r} is installed")
        try:
            make = found[name].load()
            adapters.append(make(options[name]) if name in options else make())
        except Exception as error:
            # An adapter may be anybody's code; whoever installed it needs its name, not our trace.
            raise ConfigError(f"the adapter for {name!r} does not load: {error}") from error
    return adapters
