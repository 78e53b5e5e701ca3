"""Everything that can be configured, as frozen classes that check themselves.

A `Config` is built directly when the broker is embedded, and from a TOML file, environment
variables and options by `trivium.cli.configuration`. The sections of the file are the fields of
`Config`, its keys are the fields of the section's class: these classes are the whole schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from trivium.common.quotas import USER, VHOST, check_limits
from trivium.errors import ConfigError, PreconditionFailed
from trivium.listen import CONTROL, UNIX, ControlListener, name_all, short_listener
from trivium.listen import CertificateConfig as CertificateConfig
from trivium.listen import Listen as Listen
from trivium.listen import ListenerConfig as ListenerConfig
from trivium.listen import TlsConfig as TlsConfig
from trivium.listen import is_loopback as is_loopback
from trivium.listen import join_address as join_address
from trivium.security.identity import KNOWN_TAGS
from trivium.security.passwords import (
    MAX_ITERATIONS,
    PasswordFormatError,
    check_stored_password,
)
from trivium.security.permissions import check_pattern, grants_of, read_acl_file
from trivium.security.scram import DEFAULT_ITERATIONS, MIN_ITERATIONS, parse_keys
from trivium.security.token_keys import ALGORITHMS
from trivium.vhost.settings import check_vhost_name

#: where each protocol listens unless configured otherwise: its registered or customary port
DEFAULT_PORTS: Final = {"mqtt": 1883, "amqp": 5672, "native": 7650, "http": 15672}
#: first segments of paths at which the HTTP port has something by itself
OWN_PATHS: Final = frozenset(("api", "dashboard", "health", "metrics", "mqtt"))


@dataclass(frozen=True, slots=True)
class Fsync:
    """When written write batches are forced to the disk.

    `always`: before any acknowledgement. `every_n:N`: each N write batches. `interval:MS`: each MS
    milliseconds. `never`: left to the operating system. All but `always` weaken what an
    acknowledgement promises.
    """

    policy: Literal["always", "every_n", "interval", "never"] = "always"
    #: write batches for `every_n`, milliseconds for `interval`, 0 otherwise
    amount: int = 0

    def __post_init__(self) -> None:
        if (self.policy in ("every_n", "interval")) != (self.amount > 0):
            raise ConfigError(f"fsync {self.policy} does not go with the number {self.amount}")

    @classmethod
    def parse(cls, text: str) -> Fsync:
        """Read `always`, `every_n:N`, `interval:MS` or `never`."""
        policy, _, amount = text.partition(":")
        if policy in ("every_n", "interval") and re.fullmatch(r"[1-9][0-9]{0,8}", amount):
            return cls(policy, int(amount))  # type: ignore[arg-type]
        if text in ("always", "never"):
            return cls(text)  # type: ignore[arg-type]
        raise ConfigError(f"{text!r} is not always, every_n:N, interval:MS or never")

    def __str__(self) -> str:
        return f"{self.policy}:{self.amount}" if self.amount else self.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """`[storage]`: where and how durably messages are kept."""

    #: `disk` survives a crash, `memory` keeps nothing
    mode: Literal["disk", "memory"] = "disk"
    #: the data directory, made when it is missing; unused with `memory`
    data: Path = Path("trivium-data")
    fsync: Fsync = Fsync()
    #: of new segment files, where messages go that are not consumed soon
    compression: Literal["none", "zstd"] = "none"
    #: a file, or the name of an environment variable, with the keys that encrypt the data
    #: directory: 64 hexadecimal digits each, the first for what is written
    key_file: str = ""
    key_env: str = ""

    def __post_init__(self) -> None:
        if self.mode not in ("disk", "memory"):
            raise ConfigError(f"mode {self.mode!r} is neither disk nor memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """`[delivery]`: how messages are treated where no queue, policy or message says otherwise."""

    #: `as-published`: as the publisher's protocol says (QoS, delivery_mode, mode)
    mode: Literal["as-published", "at-most-once", "at-least-once", "exactly-once"] = "as-published"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """`[limits]`: what one client, or all of them, can make the broker hold."""

    #: connections over all protocols; further ones are closed at once
    max_connections: int = 100_000
    #: the same of one address, of IPv6 of one network of 64 bits; 0 is no limit
    max_connections_per_address: int = 0
    #: new connections of one address in a second, further ones are closed at once; 0 is no limit
    connection_rate_per_address: int = 0
    #: handshakes under way, and clients that have not said who they are; the oldest gives way
    max_handshakes: int = 1000
    #: bytes that all clients together may have sent before they have authenticated; whoever sent
    #: most gives way
    max_unauthenticated_bytes: int = 64 << 20
    #: bytes of one message's payload, and so of the largest frame or packet that is accepted
    max_message_bytes: int = 16 * 1024 * 1024
    #: seconds in which a new connection must have authenticated
    handshake_seconds: float = 10.0
    #: milliseconds for which a turn of the event loop takes input of one client: what is left waits
    #: for the next turn, and others are served between
    turn_milliseconds: float = 5.0
    #: seconds in which an AMQP client must acknowledge a delivery where neither the queue nor its
    #: policy says otherwise (RabbitMQ's default); 0 is off
    consumer_timeout_seconds: float = 1800.0
    #: share of the memory that the process may use (the machine's, or the container's) above which
    #: publishers are paused; 0 is off
    memory_high_fraction: float = 0.6
    #: the same in bytes, instead of the share; 0 is not set
    memory_high_bytes: int = 0
    #: free bytes on the data directory's file system below which publishers are paused; 0 is off.
    #: It is room for what is under way when the limit is passed: write batches that are filled and
    #: written, the next journal file, and a checkpoint.
    disk_free_bytes: int = 512 * 1024 * 1024
    #: bytes of output that a subscriber may have waiting, beside what its socket holds, before
    #: those who publish to its live subscriptions (MQTT QoS 0, native pubsub) wait for moments; or,
    #: if it does not read, before what comes for them is dropped
    live_output_bytes: int = 1024 * 1024
    #: the same above which it is dropped in any case: what many publishers, of whom each was read
    #: once, can pour into one subscriber
    live_burst_bytes: int = 16 * 1024 * 1024
    #: quotas of each user, and of each virtual host, that have no others; see
    #: `trivium.common.quotas`
    user: Mapping[str, Any] = field(default_factory=dict)
    vhost: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "max_connections",
            "max_handshakes",
            "max_unauthenticated_bytes",
            "max_message_bytes",
            "handshake_seconds",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be greater than 0")
        if not 0 < self.live_output_bytes <= self.live_burst_bytes:
            raise ConfigError("live_output_bytes must be from 1 to live_burst_bytes")
        if not 0 <= self.memory_high_fraction <= 1:
            raise ConfigError("memory_high_fraction must be from 0 to 1")
        for name in (
            "max_connections_per_address",
            "connection_rate_per_address",
            "turn_milliseconds",
            "consumer_timeout_seconds",
            "memory_high_bytes",
            "disk_free_bytes",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")
        _check_quotas("user", USER, self.user)
        _check_quotas("vhost", VHOST, self.vhost)


def _check_quotas(key: str, scope: str, limits: Mapping[str, Any]) -> None:
    try:
        check_limits(scope, limits)
    except PreconditionFailed as error:
        raise ConfigError(f"{key}: {error}") from None


#: Permissions for everything in every virtual host.
EVERYTHING: Final = {"*": {"configure": ".*", "write": ".*", "read": ".*"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """`[auth]`: who gets in without an entry under `[users]`."""

    #: clients without credentials: accepted on listeners bound to loopback only, always, never
    anonymous: Literal["loopback", "always", "never"] = "loopback"
    #: whether the user guest with password guest exists; it is accepted from this machine only
    guest: bool = True
    #: ways to authenticate, in order, for listeners that name none; () is all that are set up
    methods: tuple[str, ...] = ()
    #: files of users as `mosquitto_passwd` writes them
    password_files: tuple[str, ...] = ()
    #: what clients without credentials may do, by virtual host; `*` is every one
    anonymous_permissions: Mapping[str, Any] = field(default_factory=lambda: dict(EVERYTHING))
    #: their tags
    anonymous_tags: tuple[str, ...] = ("policymaker", "monitoring")
    #: quotas of all of them together
    anonymous_limits: Mapping[str, Any] = field(default_factory=dict)
    #: an ACL file of Mosquitto's; with it, clients without credentials have what it says alone
    acl_file: str = ""
    #: a pattern that the client identifiers of users must match, `{username}` being who it is
    client_id_pattern: str = ""
    #: an MQTT 3 client publishes what it may not: it is told that all is well, or disconnected
    refused_publish: Literal["acknowledge", "disconnect"] = "acknowledge"
    #: whether each operation that is refused for want of a permission is logged (level `info`)
    log_denials: bool = False
    #: whether MQTT 5 clients may prove passwords by SCRAM, and new passwords get keys for it
    scram: bool = False
    #: of those keys; each client computes as many when it connects
    scram_iterations: int = DEFAULT_ITERATIONS

    def __post_init__(self) -> None:
        _check_grants(self.anonymous_permissions, {}, ())
        _check_tags("anonymous_tags", self.anonymous_tags)
        if not MIN_ITERATIONS <= self.scram_iterations <= MAX_ITERATIONS:
            raise ConfigError(f"scram_iterations must be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        _check_quotas("anonymous_limits", USER, self.anonymous_limits)
        try:
            check_pattern(self.client_id_pattern.replace("{username}", "x"))
            if self.acl_file:
                read_acl_file(self.acl_file)
        except PreconditionFailed as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtConfig:
    """`[jwt]`: tokens in place of passwords; see `trivium.security.tokens`."""

    #: a public key or certificate in PEM, or the secret of an HMAC
    key_file: str = ""
    #: a file with a key set, and an address where one is served
    jwks_file: str = ""
    jwks_url: str = ""
    #: seconds after which the key set is fetched again
    refresh_seconds: float = 300.0
    timeout_seconds: float = 5.0
    algorithms: tuple[str, ...] = ALGORITHMS
    #: one of which a token must be for; () is for anybody
    audience: tuple[str, ...] = ()
    #: who must have issued a token; "" is anybody whose key it is
    issuer: str = ""
    #: by which clocks may differ
    leeway_seconds: float = 30.0
    #: the claim with the user's name, and that with its tags, those with the prefix; "" is none
    user_claim: str = "sub"
    tags_claim: str = ""
    tag_prefix: str = ""
    #: the claim with its scopes, those with the prefix; "" is none: its user's permissions hold
    scopes_claim: str = ""
    scope_prefix: str = ""
    #: word of that claim to the scopes that it stands for beside itself, with their prefix: a text
    #: with spaces between, or a list
    scope_aliases: Mapping[str, Any] = field(default_factory=dict)
    #: the claim with the virtual host of clients that name none; "" is none
    vhost_claim: str = ""

    def __post_init__(self) -> None:
        _check_times(self, "refresh_seconds", "timeout_seconds")
        _check_url("jwks_url", self.jwks_url)
        if self.leeway_seconds < 0:
            raise ConfigError("leeway_seconds must not be negative")
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ConfigError(f"algorithms: {name!r} is not one of {', '.join(ALGORITHMS)}")

    @property
    def is_set_up(self) -> bool:
        """Whether there are keys."""
        return bool(self.key_file or self.jwks_file or self.jwks_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAuthConfig:
    """`[http_auth]`: who asks a server; see `trivium.security.http_authenticator`."""

    #: where to POST; "" is nobody
    url: str = ""
    #: `json`: the body of the answer says; `status`: 200 is yes, 4xx is no
    answer: Literal["json", "status"] = "json"
    timeout_seconds: float = 5.0
    #: for which an answer is remembered; 0 is not at all
    cache_seconds: float = 60.0
    #: header fields of each request, as for a token
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_times(self, "timeout_seconds")
        if self.cache_seconds < 0:
            raise ConfigError("cache_seconds must not be negative")
        _check_url("url", self.url)
        for name, value in self.headers.items():
            if not isinstance(value, str) or re.search(r"[\r\n\0]", name + value):
                raise ConfigError("headers must be texts of one line")


def _check_url(key: str, url: str) -> None:
    """Raise ConfigError unless it is empty, or the address of something that can be asked."""
    if url and not re.match(r"https?://[^/]", url):
        raise ConfigError(f"{key} does not begin with http:// or https://")


def _check_tags(key: str, tags: tuple[str, ...]) -> None:
    """Raise ConfigError for what is no tag: one that is misspelt would permit nothing."""
    for tag in tags:
        if tag not in KNOWN_TAGS:
            raise ConfigError(f"{key}: {tag!r} is not one of {', '.join(KNOWN_TAGS)}")


def _check_times(config: object, *names: str) -> None:
    """Raise ConfigError unless all are times to wait for."""
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name} must be greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """`[users.NAME]`: one user."""

    #: plain text, or what `trivium hash-password` printed
    password: str = field(repr=False)
    #: of the same password, what `trivium hash-password --scram` printed; "": SCRAM is not for it
    scram: str = field(default="", repr=False)
    #: administrator, policymaker, monitoring, management; impersonator and none mean nothing here
    tags: tuple[str, ...] = ()
    #: virtual host to `configure`, `write` and `read`, each a pattern for names
    permissions: Mapping[str, Any] = field(default_factory=dict)
    #: virtual host to exchange to `write` and `read`, each a pattern for routing keys
    topic_permissions: Mapping[str, Any] = field(default_factory=dict)
    #: lines of an ACL, as in Mosquitto's file
    acl: tuple[str, ...] = ()
    #: roles whose permissions the user has too, each one of `[roles]`
    roles: tuple[str, ...] = ()
    #: where MQTT connections go that name no virtual host, and where its ACL lines hold; it is made
    #: when it is missing
    virtual_host: str = "/"
    #: its quotas, beside those that `[limits]` has for every user
    limits: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_grants(self.permissions, self.topic_permissions, self.acl)
        _check_quotas("limits", USER, self.limits)
        _check_tags("tags", self.tags)
        if self.virtual_host:
            _check_vhost("virtual_host", self.virtual_host)
        try:
            check_stored_password(self.password)
        except PasswordFormatError as error:
            raise ConfigError(f"password: {error}") from None
        try:
            if self.scram:
                parse_keys(self.scram)
        except PasswordFormatError as error:
            raise ConfigError(f"scram: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig:
    """`[roles.NAME]`: permissions for several users; the keys are those of `[users.NAME]`."""

    permissions: Mapping[str, Any] = field(default_factory=dict)
    topic_permissions: Mapping[str, Any] = field(default_factory=dict)
    acl: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_grants(self.permissions, self.topic_permissions, self.acl)


def _check_vhost(key: str, name: str) -> None:
    """Raise ConfigError unless a virtual host may be called so."""
    try:
        check_vhost_name(name)
    except PreconditionFailed as error:
        raise ConfigError(f"{key}: {error}") from None


def _check_grants(
    permissions: Mapping[str, Any], topic_permissions: Mapping[str, Any], acl: tuple[str, ...]
) -> None:
    try:
        grants_of(permissions, topic_permissions, list(acl), [])
    except PreconditionFailed as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """`[policies.NAME]`: one policy, set at each start; see `trivium.vhost.policies`."""

    #: regular expression that the names of what it applies to match
    pattern: str
    #: keys such as `max-length` and their values
    definition: Mapping[str, Any]
    apply_to: Literal[
        "all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"
    ] = "all"
    #: of several policies that match, the one with the highest holds, alone
    priority: int = 0
    #: the virtual host, made when it is missing
    vhost: str = "/"

    def __post_init__(self) -> None:
        _check_vhost("vhost", self.vhost)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`[log]`: what is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    #: lines of text, or of JSON
    format: Literal["text", "json"] = "text"
    #: milliseconds of a turn from which on there is a line about it; 0: never
    slow_turn_ms: float = 100.0

    def __post_init__(self) -> None:
        if self.slow_turn_ms < 0:
            raise ConfigError("slow_turn_ms must not be negative")


#: What `[audit] events` may name.
AUDIT_EVENTS: Final = ("logins", "refusals", "users", "permissions", "topology", "policies")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """`[audit]`: who came in, was refused, changed what; see `trivium.observability.audit`."""

    #: a file for lines of JSON; "" is none
    file: str = ""
    #: whether the lines go to the log too
    log: bool = False
    #: what is written; () is everything
    events: tuple[str, ...] = ()
    #: bytes after which a new file is begun, 0 for never, and how many full ones are kept
    max_file_bytes: int = 100 << 20
    files: int = 10

    def __post_init__(self) -> None:
        for name in self.events:
            if name not in AUDIT_EVENTS:
                raise ConfigError(f"events: {name!r} is not one of {', '.join(AUDIT_EVENTS)}")
        if self.max_file_bytes < 0 or self.files < 1:
            raise ConfigError("max_file_bytes must not be negative, and files at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """`[metrics]`: what Prometheus gets; see `trivium.runtime.exposition`."""

    #: whether `/metrics` has those of each queue, stream, user ... unless asked otherwise
    per_object: bool = False
    #: samples of these in one answer, at most
    max_series: int = 20_000

    def __post_init__(self) -> None:
        if self.max_series < 0:
            raise ConfigError("max_series must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`[http]`: what browsers and tools see of the HTTP port."""

    #: path at which a proxy shows it, such as `/trivium`
    path_prefix: str = ""

    def __post_init__(self) -> None:
        prefix = self.path_prefix
        if prefix and not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", prefix):
            raise ConfigError("path_prefix begins with / and does not end with it, as in /trivium")
        if prefix[1:].partition("/")[0] in OWN_PATHS:
            raise ConfigError(f"path_prefix: {prefix!r} is a path of the broker's own")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """`[tracing]`: spans for OpenTelemetry; see `trivium.runtime.tracing`."""

    #: URL of a collector that takes OTLP over HTTP; `/v1/traces` where it has no path; "" is none
    endpoint: str = ""
    #: of the messages that bring no context, the share that begins a trace
    sample_ratio: float = 0.01
    #: whether of those that bring one exactly those are followed whose trace is sampled
    parent_based: bool = True
    service_name: str = "trivium"
    #: header fields of each request
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 10.0
    #: that wait for the collector; further ones are dropped
    max_spans: int = 8192

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("endpoint is no URL of http or https")
        if not 0 <= self.sample_ratio <= 1:
            raise ConfigError("sample_ratio is from 0 to 1")
        if self.timeout_seconds <= 0:
            raise ConfigError("timeout_seconds must be positive")
        if self.max_spans < 1:
            raise ConfigError("max_spans must be positive")

    @property
    def traces_url(self) -> str:
        """Where spans are sent to."""
        parts = urlsplit(self.endpoint)
        return self.endpoint.rstrip("/") + ("/v1/traces" if parts.path in ("", "/") else "")


#: The control socket's file in the data directory.
CONTROL_FILE: Final = "control.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """`[control]`: the Unix socket by which commands reach the broker, in its owner's name."""

    #: its path; `auto` is `control.sock` in the data directory, and nowhere without one; `off`
    socket: str = "auto"
    #: permissions, octal digits: whoever may write to it is an administrator
    mode: str = "0600"
    #: `USER[:GROUP]` to whom it belongs; "" is who runs the broker
    owner: str = ""

    def __post_init__(self) -> None:
        if self.socket != "off":
            self._at(self.socket, False)

    def listener(self, storage: StorageConfig) -> ControlListener | None:
        """What listens there; None where nothing does."""
        if self.socket == "off":
            return None
        if self.socket != "auto":
            return self._at(self.socket, False)
        if storage.mode == "memory":
            return None
        return self._at(str(storage.data / CONTROL_FILE), True)

    def _at(self, path: str, may_be_missing: bool) -> ControlListener:
        """Raises ConfigError."""
        return ControlListener(
            protocol="http",
            address=UNIX + path,
            name=CONTROL,
            mode=self.mode,
            owner=self.owner,
            may_be_missing=may_be_missing,
        )


def default_listen() -> dict[str, Listen]:
    """Every protocol that comes with the broker, on loopback and its customary port."""
    return {protocol: Listen(port) for protocol, port in DEFAULT_PORTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one broker.

    `listen` maps the name of a protocol (an adapter's entry point, or `http`) to its address, with
    an `s` behind the name for TLS, which `tls` has then; `ws` and `wss` are WebSockets. Each entry
    is one listener, and `listeners` has further ones. A protocol that neither names does not
    listen.
    """

    listen: Mapping[str, Listen] = field(default_factory=default_listen)
    #: the TLS of those of `listen` that have it
    tls: TlsConfig = field(default_factory=TlsConfig)
    listeners: tuple[ListenerConfig, ...] = ()
    #: a broker that is embedded has none unless it says so
    control: ControlConfig = ControlConfig(socket="off")
    storage: StorageConfig = StorageConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    jwt: JwtConfig = JwtConfig()
    http_auth: HttpAuthConfig = HttpAuthConfig()
    users: Mapping[str, UserConfig] = field(default_factory=dict)
    roles: Mapping[str, RoleConfig] = field(default_factory=dict)
    policies: Mapping[str, PolicyConfig] = field(default_factory=dict)
    log: LogConfig = LogConfig()
    audit: AuditConfig = AuditConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    http: HttpConfig = HttpConfig()
    #: by the name of a protocol what can be set about it: an object of the class that its package
    #: names in the entry point group `trivium.options`; its defaults hold where it has none
    protocols: Mapping[str, object] = field(default_factory=dict)

    def all_listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener, each with a name of its own: those of `listen`, `listeners`, and the
        control socket.

        Raises ConfigError.
        """
        short: list[ListenerConfig] = []
        for name, listen in self.listen.items():
            if listen.enabled:
                try:
                    short.append(short_listener(name, listen, self.tls))
                except ConfigError as error:
                    raise ConfigError(f"[listen] {name}: {error}") from None
        control = self.control.listener(self.storage)
        return name_all([*short, *self.listeners, *([] if control is None else [control])])

    def __post_init__(self) -> None:
        self._check_classes()
        self.all_listeners()
        for name, user in self.users.items():
            for role in user.roles:
                if role not in self.roles:
                    raise ConfigError(f"[users.{name}] roles: there is no role {role!r}")
        if self.policies:
            from trivium.vhost.policies import Policy

            for name, policy in self.policies.items():
                try:
                    Policy(
                        name, policy.pattern, policy.definition, policy.apply_to, policy.priority
                    )
                except PreconditionFailed as error:
                    raise ConfigError(f"[policies.{name}]: {error}") from None

    def _check_classes(self) -> None:
        """Sections are objects, which a program may not know. Raises ConfigError."""
        parts: list[tuple[str, object, type]] = [
            (each.name, getattr(self, each.name), type(each.default))
            for each in fields(self)
            if is_dataclass(each.default)
        ]
        parts += [(f"listen[{name!r}]", listen, Listen) for name, listen in self.listen.items()]
        parts += [("one of listeners", each, ListenerConfig) for each in self.listeners]
        for what, value, kind in parts:
            if not isinstance(value, kind):
                raise ConfigError(f"{what} is a {kind.__name__}, not {value!r}")
