"""A server whose users are permitted what a test says, by permissions, by keys or by tokens."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import jwt

from tests.support.roads import Server as BaseServer
from tests.support.server import NOW_MS
from trivium.config import EVERYTHING, Config, JwtConfig, StorageConfig, UserConfig
from trivium.security.permissions import CONFIGURE, READ, WRITE, grants_of
from trivium_native.wire import frames

SECRET = "a secret of more than thirty-two bytes"
#: kind and name
Need = tuple[str, str]
#: at a topic exchange: a permission for the key
TOPIC = "topic-"
#: one for all of them
EVERY = ".*"


class Server(BaseServer):
    """One whose users are permitted what a test says."""

    def permit(self, user: str, needs: list[Need]) -> None:
        """Grant exactly these, and what lets the user in; elsewhere it may do everything."""
        names: dict[str, list[str]] = {CONFIGURE: ["entry"], WRITE: [], READ: []}
        topics: dict[str, list[str]] = {WRITE: [], READ: []}
        for kind, name in needs:
            if kind.startswith(TOPIC):
                topics[kind.removeprefix(TOPIC)].append(name)
            else:
                names[kind].append(name)
        topic_patterns = {kind: _any_of(found) for kind, found in topics.items()}
        self.broker.permissions.set_user(
            user,
            grants_of(
                {
                    "elsewhere": EVERYTHING["*"],
                    self.home: {kind: _any_of(found) for kind, found in names.items()},
                },
                {self.home: {"amq.topic": topic_patterns, "x": topic_patterns}},
                [],
                [],
            ),
        )
        self.broker.logins.permissions_changed(user)
        self.settle()


class ScopedServer(Server):
    """The same where ann may do everything, but comes with a key whose scopes say less."""

    shown = b"p"

    def password(self, user: str) -> bytes:
        return self.shown if user == "ann" else super().password(user)

    def permit(self, user: str, needs: list[Need]) -> None:
        super().permit(user, [])
        self.broker.permissions.set_user(user, grants_of(EVERYTHING, {}, [], []))
        self.show(user, scopes_for(self.home, [(CONFIGURE, "entry"), *needs]))

    def show(self, user: str, scopes: list[str]) -> None:
        self.shown = self.broker.authentication.api_keys.add(user, scopes)[1].encode()


class TokenServer(ScopedServer):
    """The same where ann may do nothing, but comes with a token whose scopes say more."""

    def permit(self, user: str, needs: list[Need]) -> None:
        super().permit(user, needs)
        self.broker.permissions.set_user(user, None)

    def show(self, user: str, scopes: list[str]) -> None:
        claims = {"sub": user, "exp": NOW_MS // 1000 + 60, "scope": ["openid", *scopes]}
        self.shown = jwt.encode(claims, SECRET, "HS256").encode()


def scopes_for(home: str, needs: list[Need]) -> list[str]:
    """The scopes that say just this."""
    found = []
    vhost = quote(home, safe="")
    for kind, name in needs:
        keys = [
            "*" if key == EVERY else quote(key, safe="")
            for each, key in needs
            if each == TOPIC + kind
        ] or ["none"]
        if kind.startswith(TOPIC):
            continue
        if name in ("amq.topic", "x") and kind != CONFIGURE:
            found += [f"{kind}:{vhost}/{name}/{key}" for key in keys]
        else:
            found.append(f"{kind}:{vhost}/{quote(name, safe='')}")
    return found


def _any_of(names: list[str]) -> str:
    if EVERY in names:
        return EVERY
    return f"^({'|'.join(re.escape(name) for name in names)})$" if names else ""


def make_server(
    home: str = "/", kind: type[Server] = Server, directory: Path | None = None
) -> Server:
    users = {
        name: UserConfig(password="p", permissions=EVERYTHING if name == "root" else {})
        for name in ("root", "ann", "bob")
    }
    tokens = JwtConfig()
    if directory is not None:
        (directory / "key").write_text(SECRET, encoding="utf-8")
        tokens = JwtConfig(key_file=str(directory / "key"), scopes_claim="scope")
    server = kind(config=Config(storage=StorageConfig(mode="memory"), users=users, jwt=tokens))
    for name in (home, "elsewhere"):
        server.broker.virtual_hosts.declare(name)
    server.home = home
    root = server.native("root")
    for what, name in (("exchange", "x"), ("exchange", "y"), ("queue", "q"), ("stream", "s")):
        root.ask(frames.DECLARE, kind=what, name=name)
    root.ask(frames.BIND, exchange="x", kind="queue", name="q", pattern=b"k")
    return server
