"""For whom sessions and their subscriptions count: their user and their virtual host, whether or
not the client is here; and its subscriptions, while it is, for its listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.quotas import SESSIONS, SUBSCRIPTIONS, USER, Account
from trivium.runtime.adapter import enter_vhost
from trivium_mqtt.codec.reasons import SESSION_TAKEN_OVER

if TYPE_CHECKING:
    from trivium_mqtt.connection import MqttConnection
    from trivium_mqtt.session import Session


def enter(connection: MqttConnection, client_id: bytes) -> None:
    """Have the connection of a client count, and end another of that client (MQTT-3.1.4-3).

    Where both are of one user they do not count beside each other. Raises QuotaExceeded.
    """
    sessions = connection.sessions
    known = sessions.by_client.get(client_id)
    before = None if known is None else known.connection
    if (
        before is None
        or known is None
        or not known.is_of(connection.identity, connection.mount_point)
    ):
        enter_vhost(connection, sessions.vhost.name)
    if before is not None:
        before.end(SESSION_TAKEN_OVER)
    enter_vhost(connection, sessions.vhost.name)


def accounts_of(session: Session) -> tuple[Account, Account]:
    """Those of its user and its virtual host."""
    sessions = session.sessions
    name = session.access.identity.name
    return sessions.broker.quotas.account(USER, name), sessions.vhost.account


def require_session(session: Session) -> None:
    """Raise QuotaExceeded unless there may be this one more."""
    session.sessions.broker.quotas.require(accounts_of(session), SESSIONS)


def count_session(session: Session, count: int) -> None:
    """It has come, or gone."""
    for account in accounts_of(session):
        account.add(SESSIONS, count)


def count_subscriptions(session: Session, count: int) -> None:
    """So many of its subscriptions have come, or gone."""
    for account in accounts_of(session):
        account.add(SUBSCRIPTIONS, count)
    if session.connection is not None:
        session.connection.usage.lend_subscriptions(count)


def lend_subscriptions(session: Session) -> None:
    """Its client is here: its listener has its subscriptions until it leaves."""
    if session.subscriptions is not None and session.connection is not None:
        session.connection.usage.lend_subscriptions(len(session.subscriptions))
