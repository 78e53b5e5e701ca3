"""Where the broker listens, and how: the listeners of a configuration.

Part of the schema of `trivium.config`, which has these names as well.
"""

from __future__ import annotations

import ipaddress
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from trivium.common.quotas import LISTENER, check_limits
from trivium.errors import ConfigError, PreconditionFailed
from trivium.vhost.settings import check_vhost_name

#: The protocol that `ws` and `wss` in `[listen]` mean, and the path that its clients ask for.
WEBSOCKET_PROTOCOL: Final = "mqtt"
WEBSOCKET_PATH: Final = "/mqtt"
#: The protocol whose topics may have a prefix.
MOUNTED_PROTOCOL: Final = "mqtt"


UNIX: Final = "unix:"

#: The method to authenticate by a client's certificate.
CERTIFICATE: Final = "certificate"
#: What a certificate says of its owner, each of which may hold the user's name.
NAME_SOURCES: Final = ("cn", "san-dns", "san-email", "san-uri")


@dataclass(frozen=True, slots=True)
class Listen:
    """Where one protocol listens: an address, or nowhere.

    `host` is an IP address or a name; "localhost" means both 127.0.0.1 and ::1. `port` 0 takes any
    free port. Raises ConfigError for an empty host or a port outside 0..65535.
    """

    port: int
    host: str = "127.0.0.1"
    enabled: bool = True

    OFF: ClassVar[Listen]

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in 0..65535")
        if not self.host or re.search(r"[\s\[\]/]", self.host):
            raise ConfigError(f"{self.host!r} is not a host")

    # It is asked of the listener of every client.
    @classmethod
    @lru_cache(maxsize=256)
    def parse(cls, text: str) -> Listen:
        """Read `[HOST:]PORT` or `off`; an IPv6 host stands in brackets (`[::1]:1883`)."""
        if text == "off":
            return cls.OFF
        match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]]+)):)?([0-9]{1,5})", text)
        if match is None:
            raise ConfigError(f"{text!r} is not [HOST:]PORT or off (IPv6 hosts in brackets)")
        ipv6, name, port = match.groups()
        if ipv6 is not None:
            try:
                ipaddress.IPv6Address(ipv6)
            except ValueError:
                raise ConfigError(f"{ipv6!r} is not an IPv6 address") from None
        return cls(int(port), ipv6 or name or "127.0.0.1")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to bind, the first of which must succeed."""
        return ("127.0.0.1", "::1") if self.host == "localhost" else (self.host,)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the listener."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return join_address(self.host, self.port) if self.enabled else "off"


Listen.OFF = Listen(0, enabled=False)


# It is asked of every client, most of which come from few addresses.
@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether `host` (an IP address, or "localhost") names this machine only."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def names_this_machine(host: str) -> bool:
    """Whether a client calls us by a name of this machine (``Host``, RFC 9110, 7.2), or by none.

    A page of another site calls us by its own, though that may lead here (DNS rebinding): no name
    below ``localhost`` can (RFC 6761, 6.3), and no address.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if not name:
        return not host
    name = name.removesuffix(".")
    return name.endswith(".localhost") or name == platform.node().lower() or is_loopback(name)


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateConfig:
    """One more certificate of a listener, for clients that ask for certain hosts (SNI)."""

    #: file with the certificate and those that lead to the authority, PEM
    certificate: str = ""
    #: file with its private key, PEM
    key: str = ""
    #: host names, each may begin with `*.` for any one label; none: those of the certificate
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """`[tls]`, and `tls` of one listener: certificates of the broker, and what it asks of clients.

    Files are PEM and are read again when they change. Raises ConfigError for what does not fit
    together; whether the files are right is found out at the start.
    """

    #: file with the certificate and those that lead to the authority
    certificate: str = ""
    #: file with its private key
    key: str = ""
    #: file with the authorities whose client certificates are accepted
    ca: str = ""
    #: file with those authorities' lists of revoked certificates; none is checked without
    crl: str = ""
    #: whether clients show a certificate; "" is `optional` with a `ca`, else `off`
    client_certificates: Literal["", "off", "optional", "required"] = ""
    #: where a client certificate has the user's name: `cn`, `san-dns`, `san-email` or `san-uri`;
    #: with `:REGEX` behind it group 1 of each value that matches as a whole. If these are several
    #: names nobody comes in by the certificate
    user_from: str = "cn"
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    #: ciphers of TLS 1.2 as OpenSSL writes them; "" is those with forward secrecy and AEAD
    ciphers: str = ""
    #: further certificates, by the host that a client asks for
    certificates: tuple[CertificateConfig, ...] = ()

    def __post_init__(self) -> None:
        source, _, pattern = self.user_from.partition(":")
        if source not in NAME_SOURCES:
            raise ConfigError(f"user_from must begin with one of {', '.join(NAME_SOURCES)}")
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            text = f"user_from: {pattern!r} is not a regular expression: {error}"
            raise ConfigError(text) from None
        if pattern and not groups:
            raise ConfigError("user_from: the regular expression must have a group")

    def check(self) -> None:
        """For TLS that is used. Raises ConfigError where a file is not named."""
        pairs = [(self.certificate, self.key)]
        pairs += [(found.certificate, found.key) for found in self.certificates]
        if not all(certificate and key for certificate, key in pairs):
            raise ConfigError("tls needs the files certificate and key")
        if self.clients != "off" and not self.ca:
            raise ConfigError("client certificates need the file ca")
        if self.crl and not self.ca:
            raise ConfigError("crl needs the file ca")

    @property
    def clients(self) -> Literal["off", "optional", "required"]:
        """Whether clients show a certificate."""
        return self.client_certificates or ("optional" if self.ca else "off")


#: What the listener of the control socket is called.
CONTROL: Final = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One of `[[listeners]]`; each entry of `[listen]` is another one.

    Raises ConfigError for an address that is none, and for what does not go with it.
    """

    protocol: str
    #: `[HOST:]PORT`, or `unix:` and the path of a socket
    address: str
    #: in the ready line and the log; "" is the protocol, with an `s` for TLS, or `ws` and `wss`
    name: str = ""
    #: permissions of a Unix socket, octal digits; None is 0660
    mode: str | None = None
    #: `USER[:GROUP]` to whom a Unix socket belongs; "" is who runs the broker
    owner: str = ""
    tls: TlsConfig | None = None
    #: path at which clients ask for a WebSocket; "" is plain
    websocket: str = ""
    #: pages from which browsers may open one, as their `Origin` is (`https://example.org`); () is
    #: those of the host that is connected to, `*` any
    websocket_origins: tuple[str, ...] = ()
    #: networks of peers that say for whom they connect, by the PROXY protocol; () is nobody
    proxy_protocol: tuple[str, ...] = ()
    #: that of its clients, made at the start if it is missing; "" is the client's choice
    virtual_host: str = ""
    #: prefix of all topics of its MQTT clients, with the / at its end
    mount_point: str = ""
    #: as `[auth] anonymous`, which "" is
    anonymous: Literal["", "loopback", "always", "never"] = ""
    #: ways to authenticate, the first that knows the user decides; () is all
    methods: tuple[str, ...] = ()
    #: at a time; 0 is no limit but `[limits] max_connections`
    max_connections: int = 0
    #: quotas of its clients together; see `trivium.common.quotas`
    limits: Mapping[str, Any] = field(default_factory=dict)
    #: what can be set about the protocol, in place of `Config.protocols`; None is that
    options: object = None

    def __post_init__(self) -> None:
        if self.mount_point and not re.fullmatch(r"[^$+#\0][^+#\0]*/", self.mount_point):
            raise ConfigError(
                f"mount_point {self.mount_point!r} does not end with /, or has a wildcard or $"
            )
        if self.mount_point and self.protocol != MOUNTED_PROTOCOL:
            raise ConfigError(f"mount_point is for the protocol {MOUNTED_PROTOCOL}")
        if self.owner and not self.is_unix:
            raise ConfigError("owner is for Unix sockets")
        if self.mode is not None and not self.is_unix:
            raise ConfigError("mode is for Unix sockets")
        if self.websocket_origins and not self.websocket:
            raise ConfigError("websocket_origins needs websocket")
        if CERTIFICATE in self.methods and not self.verifies_clients:
            raise ConfigError(f"methods: {CERTIFICATE!r} needs tls with client certificates (ca)")
        if self.is_unix:
            if not self.path or "\0" in self.path:
                raise ConfigError(f"{self.address!r} has no path")
        elif not Listen.parse(self.address).enabled:
            raise ConfigError("address must not be off")
        if self.mode is not None and not re.fullmatch("[0-7]{3,4}", self.mode):
            raise ConfigError(f"mode {self.mode!r} is not octal, as in 0660")
        if re.search(r"[\s=]", self.name):
            raise ConfigError(f"{self.name!r} is not a name for a listener")
        if self.websocket and not self.websocket.startswith("/"):
            raise ConfigError(f"websocket {self.websocket!r} does not begin with /")
        for network in self.proxy_protocol:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ConfigError(f"proxy_protocol: {error}") from None
        if self.max_connections < 0:
            raise ConfigError("max_connections must not be negative")
        try:
            check_limits(LISTENER, self.limits)
        except PreconditionFailed as error:
            raise ConfigError(f"limits: {error}") from None
        try:
            if self.virtual_host:
                check_vhost_name(self.virtual_host)
        except PreconditionFailed as error:
            raise ConfigError(f"virtual_host: {error}") from None
        if self.tls is not None:
            self.tls.check()

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self.address.startswith(UNIX)

    @property
    def path(self) -> str:
        """Of a Unix socket."""
        return self.address.removeprefix(UNIX)

    @property
    def permissions(self) -> int:
        """Of a Unix socket."""
        return int("0660" if self.mode is None else self.mode, 8)

    @property
    def listen(self) -> Listen:
        """Host and port of one that is no Unix socket."""
        return Listen.parse(self.address)

    @property
    def verifies_clients(self) -> bool:
        """Whether clients may show a certificate."""
        return self.tls is not None and self.tls.clients != "off"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; proxies connect for others."""
        return not self.proxy_protocol and (self.is_unix or self.listen.is_loopback)

    @property
    def default_name(self) -> str:
        """What it is called unless it has a name."""
        secure = "" if self.tls is None else "s"
        if not self.websocket:
            return self.protocol + secure
        prefix = "" if self.protocol == WEBSOCKET_PROTOCOL else f"{self.protocol}-"
        return f"{prefix}ws{secure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlListener(ListenerConfig):
    """The control socket: whoever may open it is the broker's owner."""

    #: whether the broker goes without where it cannot be
    may_be_missing: bool = False

    @property
    def danger(self) -> str:
        """What is to be feared of its mode; "" for nothing. To connect is to write (unix(7))."""
        if not self.permissions & 0o002:
            return ""
        return (
            f"mode {self.mode} lets everybody in who reaches {self.path}: each user of this machine"
            " is an administrator of the broker there"
        )


def is_secure(name: str) -> bool:
    """Whether an entry of `[listen]` has TLS."""
    return name.endswith("s") and name != "ws"


def short_listener(name: str, listen: Listen, tls: TlsConfig) -> ListenerConfig:
    """The listener that an entry of `[listen]` means: a protocol, one with an `s` for TLS, `ws` or
    `wss`.
    """
    secure = tls if is_secure(name) else None
    address = str(listen)
    if name.startswith("ws"):
        return ListenerConfig(
            protocol=WEBSOCKET_PROTOCOL,
            address=address,
            name=name,
            tls=secure,
            websocket=WEBSOCKET_PATH,
        )
    protocol = name if secure is None else name[:-1]
    try:
        return ListenerConfig(protocol=protocol, address=address, name=name, tls=secure)
    except ConfigError as error:
        meant = "" if secure is None else f" (it means {protocol} with TLS)"
        raise ConfigError(f"{error}{meant}") from None


def name_all(listeners: Iterable[ListenerConfig]) -> tuple[ListenerConfig, ...]:
    """The listeners, each with a name of its own. Raises ConfigError where two were given one."""
    found = list(listeners)
    names: set[str] = set()
    for listener in found:
        if listener.name in names:
            raise ConfigError(f"two listeners have the name {listener.name!r}")
        if listener.name:
            names.add(listener.name)
    for at, listener in enumerate(found):
        if not listener.name:
            name = first = listener.default_name
            number = 1
            while name in names:
                number += 1
                name = f"{first}{number}"
            names.add(name)
            found[at] = replace(listener, name=name)
    return tuple(found)
