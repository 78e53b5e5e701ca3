"""What one connection counts for its user, its virtual host and its listener, and how fast it may
publish.

A client that publishes faster than it may is not read for as long as that takes. What was read is
taken in small parts until then, so that a client with a low rate does not wait for long after one
read: it would take the broker for dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.counters import Traffic
from trivium.common.quotas import (
    BYTE_RATE,
    CHANNELS,
    CONNECTIONS,
    LISTENER,
    MESSAGE_RATE,
    SUBSCRIPTIONS,
    USER,
    VHOST,
    Account,
    Quotas,
)
from trivium.common.timers import Timed

if TYPE_CHECKING:
    from trivium.runtime.framed import FramedConnection
    from trivium.security.identity import Identity

#: Why input is held, beside the reasons of ``trivium.runtime.framed``: the client must wait.
FOR_QUOTA: Final = 4

#: Bytes that are taken at once of a client with a rate: a part of what a second allows, and within
#: these. The smallest has room for a dozen of the smallest packets.
MIN_PART: Final = 64
MAX_PART: Final = 4096

_NO_ACCOUNTS: Final[tuple[Account, ...]] = ()


class Usage:
    """What one connection counts for. Before it has entered, and once it has left, for nothing."""

    def __init__(self, quotas: Quotas, listener: str) -> None:
        #: of its user, virtual host and listener
        self.accounts: tuple[Account, ...] = _NO_ACCOUNTS
        #: the same, also once the connection has left: those that it has traffic for
        self.served: tuple[Account, ...] = _NO_ACCOUNTS
        #: the connection, whose input may have to wait; None once it has left
        self.input: FramedConnection | None = None
        self._quotas = quotas
        self._listener = listener
        # Which of these it has of its own, and which its listener has while it is here.
        self._channels = 0
        self._subscriptions = 0
        self._lent = 0

    @property
    def user(self) -> Account | None:
        """The account of its user."""
        return self.accounts[0] if self.accounts else None

    @property
    def channels(self) -> int:
        """Channels that the client has open."""
        return self._channels

    def enter(self, identity: Identity, vhost: str) -> None:
        """The client enters a virtual host. Raises QuotaExceeded: then it has not."""
        if self.accounts:
            return
        quotas = self._quotas
        accounts = (
            quotas.account(USER, identity.name),
            quotas.account(VHOST, vhost),
            quotas.account(LISTENER, self._listener),
        )
        quotas.require(accounts, CONNECTIONS)
        self.accounts = accounts
        self.served = accounts
        for account in accounts:
            account.add(CONNECTIONS, 1)
        self.rates_changed()
        if self.input is not None and self.input.throttle is not None:
            self.input.throttle.begin()

    def require(self, what: int) -> None:
        """Raise QuotaExceeded unless there may be one more."""
        self._quotas.require(self.accounts, what)

    def add_channels(self, count: int) -> None:
        """It has opened channels, or, of a negative number, closed them."""
        self._channels += count
        for account in self.accounts:
            account.add(CHANNELS, count)

    def add_subscriptions(self, count: int) -> None:
        """It has made subscriptions, or ended them."""
        self._subscriptions += count
        for account in self.accounts:
            account.add(SUBSCRIPTIONS, count)

    def lend_subscriptions(self, count: int) -> None:
        """Its client has made or ended subscriptions that may outlive it, which it counts for its
        listener alone."""
        self._lent += count
        if self.accounts:
            self.accounts[2].add(SUBSCRIPTIONS, count)

    def leave(self) -> None:
        """The connection is over: nothing of it counts any more."""
        accounts = self.accounts
        self.accounts = _NO_ACCOUNTS
        for account in accounts:
            account.add(CONNECTIONS, -1)
            account.add(CHANNELS, -self._channels)
            account.add(SUBSCRIPTIONS, -self._subscriptions)
        if accounts:
            accounts[2].add(SUBSCRIPTIONS, -self._lent)
        connection = self.input
        if connection is not None:
            self.input = None
            if connection.throttle is not None:
                connection.throttle.stop()
                connection.throttle = None

    def add_traffic(self, traffic: Traffic) -> None:
        """The connection is gone: its accounts keep what it counted."""
        for account in self.served:
            account.traffic.add(traffic)
        self.served = _NO_ACCOUNTS

    def rates_changed(self) -> None:
        """Rates may have come, gone or changed."""
        connection = self.input
        if connection is None:
            return
        if connection.throttle is not None:
            connection.throttle.look_again()
        elif any(account.has_rate for account in self.accounts):
            connection.throttle = Throttle(connection, self.accounts)


class Throttle(Timed):
    """Lets through what a connection's client sends as fast as its accounts allow."""

    def __init__(self, connection: FramedConnection, accounts: tuple[Account, ...]) -> None:
        self._connection = connection
        self._accounts = accounts
        # What was read and is not let through, from an offset on.
        self._data = b""
        self._at = 0
        self._is_feeding = False
        self._has_begun = True

    def begin(self) -> None:
        """What is left of the read that is being taken goes through here too."""
        self._has_begun = False
        self._hold(0)

    def takes(self, data: bytes) -> bool:
        """Take what was read; not what this very object lets through."""
        if self._is_feeding:
            return False
        self._data = self._data[self._at :] + data
        self._at = 0
        self.go_on()
        return True

    def due(self) -> None:
        connection = self._connection
        if connection.is_closed:
            return
        if not self._has_begun:
            self._has_begun = True
            self._data = connection.take_back()
        connection.continue_input(FOR_QUOTA)

    def look_again(self) -> None:
        """The rates have changed."""
        if self._has_begun and not self._connection.is_closed:
            self._connection.broker.timeouts.stop(self)
            self._connection.continue_input(FOR_QUOTA)

    def give_up(self) -> None:
        """What comes from now on is not carried out: it may come as fast as it does."""
        self._accounts = _NO_ACCOUNTS
        self.look_again()

    def count(self, messages: int, opened: int = 0) -> None:
        """So many messages were taken of what was let through; of compressed ones ``opened`` more
        bytes than came."""
        now = self._connection.broker.elapsed_ms
        for account in self._accounts:
            account.charge(messages, opened, now)

    def go_on(self) -> None:
        """Let through what may be, unless something holds the connection's input."""
        connection = self._connection
        broker = connection.broker
        if self._is_feeding:
            return
        while self._at < len(self._data) and not (connection.held_for or connection.is_closed):
            now = broker.elapsed_ms
            wait = 0
            for account in self._accounts:
                needed = account.wait(now)
                if needed > wait:
                    wait = needed
                    slowest = account
            if wait:
                broker.quotas.waited(slowest)
                self._hold(wait)
                return
            part = self._data[self._at : self._at + self._part_size()]
            self._at += len(part)
            for account in self._accounts:
                account.charge(0, len(part), now)
            self._is_feeding = True
            try:
                connection.feed(part)
            finally:
                self._is_feeding = False
        if self._at >= len(self._data):
            self._data = b""
            self._at = 0

    def _part_size(self) -> int:
        size = MAX_PART
        for account in self._accounts:
            for rate in (account.limits[MESSAGE_RATE], account.limits[BYTE_RATE]):
                if rate >= 0:
                    size = min(size, rate)
        return max(size, MIN_PART)

    def _hold(self, wait: int) -> None:
        broker = self._connection.broker
        self._connection.hold_input(FOR_QUOTA)
        broker.timeouts.call_at(broker.elapsed_ms + wait, self)

    def stop(self) -> None:
        """The connection is over."""
        self._connection.broker.timeouts.stop(self)
        self._data = b""
        self._at = 0
