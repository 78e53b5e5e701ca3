"""The authenticator of a broker as it is configured, and clients that are in: they must go once
what they came with does not hold any more.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trivium.common.events import Events
from trivium.common.quotas import QUEUES, USER, VHOST
from trivium.common.timers import Timed
from trivium.config import Config, HttpAuthConfig, JwtConfig
from trivium.errors import ConfigError
from trivium.host import Host
from trivium.idempotence.deduplication import REQUEST
from trivium.listen import ControlListener
from trivium.runtime.grants import configure_permissions, configure_quotas
from trivium.runtime.user_deletion import disown_queues
from trivium.security.api_keys import API_KEY, ApiKeys
from trivium.security.attempts import HTTP, JWT, Login, Method
from trivium.security.authenticator import Authenticator
from trivium.security.certificates import CERTIFICATE, Certificates
from trivium.security.clock import Clock
from trivium.security.declarers import AccessDeclarers
from trivium.security.granted import Granted
from trivium.security.hash_queue import HashQueue, RunInPool
from trivium.security.identity import Identity
from trivium.security.inside import Inside
from trivium.security.password_files import PASSWORD_FILE, PasswordFiles
from trivium.security.permissions import Permissions
from trivium.security.scopes import read_aliases
from trivium.security.scram import KEY_BYTES, MadeUpKeys, parse_keys
from trivium.security.sessions import Sessions
from trivium.security.stored import Remembered, StoredUser
from trivium.security.users import INTERNAL, Users
from trivium.storage.base import Storage, Table
from trivium.vhost.limits import apply_limits

if TYPE_CHECKING:
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker
    from trivium.security.http_authenticator import WebRules
    from trivium.security.tokens import TokenRules
    from trivium.security.web import Fetch, WebAnswer, WebRequest

logger = logging.getLogger(__name__)

#: Time in which each client may be silent.
GRACE_MS: Final = 1000

#: Names of all methods, in the order in which they are asked where none are named. First come those
#: that know what they are shown by its form: it may stand beside the name of a user.
METHODS: Final = (API_KEY, JWT, CERTIFICATE, INTERNAL, PASSWORD_FILE, HTTP)

#: the row of the secret from which salts are made up
SALT_SECRET: Final = b"scram salts"


def no_answer(request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
    """Where nobody drives the broker no request is answered."""
    done(None)


class Authentication:
    """What a configuration says of who may connect. Raises ConfigError."""

    def __init__(
        self,
        config: Config,
        run_in_pool: RunInPool,
        fetch: Fetch = no_answer,
        changed: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = lambda: 0,
        clock: Clock | None = None,
        permissions_changed: Callable[[str | None], None] = lambda _: None,
        events: Events | None = None,
    ) -> None:
        self._tell = changed
        self._run_in_pool = run_in_pool
        self._permissions_changed = permissions_changed
        events = events or Events()
        self.permissions = Permissions(events)
        configure_permissions(self.permissions, config)
        #: what commands grant
        self.granted = Granted(self.permissions, permissions_changed, events, self.may_be)
        remembered = Remembered()
        clock = clock or Clock()
        patience_ms = int(config.limits.handshake_seconds * 1000)
        hashes = HashQueue(run_in_pool, clock, events, patience_ms)
        auth = config.auth
        self.users = Users(
            configured_users(config),
            auth.guest,
            remembered,
            hashes,
            self._changed,
            events,
            auth.scram_iterations if auth.scram else 0,
        )
        self.permissions.home_of = self.users.virtual_host_of
        #: who declared what passes messages on
        self.declarers = AccessDeclarers(self.permissions, self._tags_of, self.users.is_stored)
        self._auth = auth
        self.api_keys = ApiKeys(self.users, now_ms, self._changed, events)
        methods: list[Method] = [self.users, Certificates(self.users), Inside(self.users)]
        #: None without any
        self.files: PasswordFiles | None = None
        if auth.password_files:
            paths = [Path(path) for path in auth.password_files]
            self.files = PasswordFiles(paths, remembered, hashes, run_in_pool, self._changed)
            methods.append(self.files)
        self._admits_strangers = admits_strangers(config)
        methods += [self.api_keys, *remote_methods(config, run_in_pool, fetch, now_ms)]
        known = [method.name for method in methods]
        check_chains(config, known)
        self.authenticator = Authenticator(
            methods,
            auth.methods or tuple(name for name in METHODS if name in known),
            auth.anonymous,
            hashes,
            clock,
            anonymous_tags=frozenset(auth.anonymous_tags),
            events=events,
        )
        #: of browsers
        self.sessions = Sessions(self.authenticator, clock, now_ms, events)

    def open(self, storage: Storage) -> None:
        """Load what commands have made."""
        self.users.open(storage.table("users"))
        self.api_keys.open(storage.table("keys"))
        self.granted.open(storage.table("permissions"))
        if self._auth.scram:
            secret = _secret(storage.table("secrets"))
            made_up = MadeUpKeys(secret, self._auth.scram_iterations)
            self.authenticator.made_up = made_up
            # A salt that lasts tells nothing, as one would that is another after each start.
            self.users.make_missing_keys(self._run_in_pool, lambda name: made_up.of(name, []).salt)

    def may_be(self, name: str) -> bool:
        """Whether there may be a user of that name: the broker knows it, or only tokens, client
        certificates or a server do, which say so when it comes."""
        return self._admits_strangers or self.knows(name)

    def knows(self, name: str) -> bool:
        """Whether a user of that name is in the configuration, the table or a password file."""
        if self.users.find(name) is not None:
            return True
        return self.files is not None and self.files.find(name) is not None

    def _tags_of(self, identity: Identity) -> frozenset[str]:
        if identity.is_anonymous:
            return frozenset(self._auth.anonymous_tags)
        return self.users.tags_of(identity.name)

    def set_virtual_host(self, name: str, vhost: str) -> None:
        """Say where a user's clients go that name no virtual host. Raises TopologyError."""
        self.users.set_virtual_host(name, vhost)
        self.permissions.generation += 1
        self._permissions_changed(name)

    def virtual_host_of(self, login: Login) -> str:
        """Where a client goes that names no virtual host."""
        return login.virtual_host or self.users.virtual_host_of(login.identity.name)

    def _changed(self) -> None:
        self.authenticator.changed()
        self._tell()


def remote_methods(
    config: Config, run_in_pool: RunInPool, fetch: Fetch, now_ms: Callable[[], int]
) -> list[Method]:
    """Those that are set up for users whom others know. Raises ConfigError."""
    methods: list[Method] = []
    if config.jwt.is_set_up:
        from trivium.security.tokens import Tokens

        methods.append(Tokens(token_rules(config.jwt), run_in_pool, fetch, now_ms))
    if config.http_auth.url:
        from trivium.security.http_authenticator import HttpAuthenticator

        methods.append(HttpAuthenticator(web_rules(config.http_auth), fetch, now_ms))
    return methods


def admits_strangers(config: Config) -> bool:
    """Whether users may come of whom nobody here knows before."""
    return (
        config.jwt.is_set_up
        or config.http_auth.url != ""
        or any(listener.verifies_clients for listener in config.all_listeners())
    )


def configured_users(config: Config) -> list[StoredUser]:
    """The users of `[users]`."""
    return [
        StoredUser(
            name=name,
            stored=user.password,
            scram=parse_keys(user.scram) if user.scram else None,
            tags=frozenset(user.tags),
            virtual_host=user.virtual_host,
        )
        for name, user in config.users.items()
    ]


def _secret(table: Table) -> bytes:
    """What salts are made of for users who have none: it lasts as long as real salts do."""
    found = table.get(SALT_SECRET)
    if found is None:
        found = secrets.token_bytes(KEY_BYTES)
        table.put(SALT_SECRET, found)
    return found


def token_rules(config: JwtConfig) -> TokenRules:
    """What `[jwt]` says of tokens. Raises ConfigError."""
    from trivium.security.tokens import TokenRules

    if config.scope_aliases and not config.scopes_claim:
        raise ConfigError("[jwt] scope_aliases needs scopes_claim")
    return TokenRules(
        key_file=config.key_file,
        jwks_file=config.jwks_file,
        jwks_url=config.jwks_url,
        refresh_ms=int(config.refresh_seconds * 1000),
        timeout_ms=int(config.timeout_seconds * 1000),
        algorithms=config.algorithms,
        audience=config.audience,
        issuer=config.issuer,
        leeway_ms=int(config.leeway_seconds * 1000),
        user_claim=config.user_claim,
        tags_claim=config.tags_claim,
        tag_prefix=config.tag_prefix,
        scopes_claim=config.scopes_claim,
        scope_prefix=config.scope_prefix,
        scope_aliases=read_aliases(config.scope_aliases, config.scope_prefix),
        vhost_claim=config.vhost_claim,
    )


def web_rules(config: HttpAuthConfig) -> WebRules:
    """What `[http_auth]` says of the server that is asked."""
    from trivium.security.http_authenticator import WebRules

    return WebRules(
        url=config.url,
        answer=config.answer,
        timeout_ms=int(config.timeout_seconds * 1000),
        cache_ms=int(config.cache_seconds * 1000),
        headers=tuple(config.headers.items()),
    )


def check_chains(config: Config, known: list[str]) -> None:
    """Raise ConfigError unless all methods that the configuration names are set up."""
    check_methods("[auth]", config.auth.methods, known)
    listeners = [each for each in config.all_listeners() if not isinstance(each, ControlListener)]
    for listener in listeners:
        check_methods(f"listener {listener.name}", listener.methods, known)
    if CERTIFICATE not in config.auth.methods:
        return
    # A listener with methods of its own has looked at them itself.
    plain = [each for each in listeners if not each.methods and not each.verifies_clients]
    if plain and not any(each.verifies_clients for each in listeners):
        raise ConfigError(
            f"[auth] methods: {CERTIFICATE!r} needs a listener with tls and client certificates"
            " (ca)"
        )
    if config.auth.methods == (CERTIFICATE,):
        for listener in plain:
            logger.warning(
                "listener %s: nobody can come in by the methods of [auth]: they are client"
                " certificates alone, and it has none",
                listener.name,
            )


def check_methods(place: str, names: Sequence[str], known: list[str]) -> None:
    """Raise ConfigError unless all methods that are named are set up, and each is named once."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{place} methods: {name!r} is named twice")
        if name not in METHODS:
            raise ConfigError(f"{place} methods: {name!r} is not one of {', '.join(METHODS)}")
        if name not in known:
            raise ConfigError(f"{place} methods: {name!r} is not set up in the configuration")


def make_authenticator(config: Config, run_in_pool: RunInPool) -> Authenticator:
    """Who may connect, as configured."""
    return Authentication(config, run_in_pool).authenticator


class HostClock(Clock):
    """The clock of a broker, and its timers."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def now(self) -> int:
        return self._host.elapsed_ms

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        work = self._host.events.for_served(work)
        self._host.timeouts.call_at(self._host.elapsed_ms + milliseconds, _Later(work))
        # A request over HTTP comes outside of turns, which set the time of the next one.
        self._host.request_turn()


class _Later(Timed):
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def due(self) -> None:
        self._work()


class Logins(Timed):
    """The clients of one broker that are in."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: those that came with something that expires
        self.expiring: set[Connection] = set()
        #: quotas that commands set
        self.limits = configure_quotas(
            broker.quotas,
            broker.config,
            broker.events,
            lambda name: broker.authentication.may_be(name),
        )
        broker.quotas.changed = self._limits_changed
        # Those that have shown nothing of themselves yet, and since when, oldest first.
        self._silent: dict[Connection, int] = {}
        # Of those that are not in yet the bytes that they have sent, and the sum of these.
        self._sent: dict[Connection, int] = {}
        self._sent_bytes = 0

    def came(self, connection: Connection) -> None:
        """A client has connected. Where too many are silent the oldest gives way."""
        now = self._broker.elapsed_ms
        if len(self._silent) >= self._broker.config.limits.max_handshakes:
            oldest, since = next(iter(self._silent.items()))
            # What the others have sent may not have been read yet.
            if now - since >= GRACE_MS:
                del self._silent[oldest]
                oldest.transport.abort()
        self._silent[connection] = now

    def spoke(self, connection: Connection) -> None:
        """A client has shown who it is, rightly or not; or it is gone."""
        self._silent.pop(connection, None)

    def received(self, connection: Connection, size: int) -> bool:
        """A client that is not in yet has sent so much, which may be held until it is.

        Where all of them together have sent too much, whoever sent most gives way, as who means it
        sends little. False where that is this one: it is cut off.
        """
        self._sent[connection] = self._sent.get(connection, 0) + size
        self._sent_bytes += size
        while self._sent_bytes > self._broker.config.limits.max_unauthenticated_bytes:
            most = max(self._sent, key=self._sent.__getitem__)
            logger.debug("%s: too much before authentication, it is closed", most.peer.address)
            self.came_in(most)
            most.transport.abort()
            if most is connection:
                return False
        return True

    def came_in(self, connection: Connection) -> None:
        """A client is in, or gone: what it has sent does not count any more."""
        self._sent_bytes -= self._sent.pop(connection, 0)

    def user_added(self, name: str) -> None:
        """There will be another user of this name: it has nothing of what was granted to it, or is
        kept for whom others know by it."""
        for adapter in self._broker.adapters.values():
            adapter.user_added(name)
        has_queues = self._broker.quotas.account(USER, name).used[QUEUES] > 0
        for vhost in self._broker.vhosts.values():
            vhost.deduplication.drop(REQUEST, name)
            if has_queues:
                for _ in disown_queues(self._broker, vhost, name):
                    pass
        self._broker.authentication.granted.forget_user(name)
        self.limits.forget(name)

    def _limits_changed(self, scope: str, name: str) -> None:
        """Quotas have changed, of one user, virtual host or listener."""
        broker = self._broker
        if scope == VHOST and name in broker.vhosts:
            apply_limits(broker.vhosts[name])
        for connection in list(broker.connections):
            if not connection.is_closed:
                connection.usage.rates_changed()

    def changed(self) -> None:
        """Users or passwords have changed: look at all clients at the end of this turn."""
        self._broker.timeouts.call_at(self._broker.elapsed_ms, self)

    def due(self) -> None:
        broker = self._broker
        is_changed = broker.authentication.declarers.users_changed()
        for vhost in broker.vhosts.values():
            if is_changed:
                vhost.suspensions.permissions_changed()
            vhost.suspensions.tags_changed()
        for connection in list(broker.connections):
            login = connection.login
            if login is None or connection.is_closed:
                continue
            current = broker.authenticator.current(login)
            if current is None:
                logger.info(
                    "%s: user %r may not stay", connection.peer.address, login.identity.name
                )
                connection.shutdown(is_revoked=True)
            elif current is not login:
                connection.admit(current)

    def permissions_changed(self, name: str | None) -> None:
        """What the user ``name`` may do, or with None what anybody may, has changed."""
        broker = self._broker
        for vhost in broker.vhosts.values():
            vhost.suspensions.permissions_changed()
        for adapter in broker.adapters.values():
            adapter.permissions_changed(name)
        for connection in list(broker.connections):
            if not connection.is_closed and name in (None, connection.identity.name):
                connection.permissions_changed()

    def tick(self) -> None:
        """End the connections whose time is up."""
        now = self._broker.now_ms
        for connection in list(self.expiring):
            login = connection.login
            if login is not None and 0 < login.expires_ms <= now and not connection.is_closed:
                logger.info(
                    "%s: what user %r came with has expired",
                    connection.peer.address,
                    login.identity.name,
                )
                connection.shutdown(is_revoked=True)
