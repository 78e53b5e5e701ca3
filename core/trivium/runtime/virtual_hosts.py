"""The virtual hosts of a broker: which there are, and what is set about them.

Each has a row in the table ``vhosts``, but for ``/`` while nothing is set about that. Those that
the configuration names are made at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trivium.common.quotas import VHOST
from trivium.errors import AccessRefused, LimitExceeded, NotFound, PreconditionFailed
from trivium.runtime.firehose import Firehose
from trivium.runtime.vhost_deletion import VhostDeletion
from trivium.vhost.policies import Policy
from trivium.vhost.settings import VirtualHostSettings, check_vhost_name, settings_of_row
from trivium.vhost.virtual_host import VirtualHost

if TYPE_CHECKING:
    from trivium.messages.tracing import Tracer
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker

logger = logging.getLogger(__name__)

#: Where clients are that name no other.
DEFAULT_VHOST: Final = "/"

#: Virtual hosts of one broker: each has some twenty tables in memory.
MAX_VHOSTS: Final = 10_000


class VirtualHosts:
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: those that clients may enter
        self.by_name: dict[str, VirtualHost] = {}
        #: who follows messages; None: nobody does. It is set before they are opened.
        self.tracer: Tracer | None = None
        #: messages that their firehoses left out, since one turn had too many
        self.traces_dropped = 0
        # Those on their way out.
        self._leaving: dict[str, VhostDeletion] = {}

    def open(self) -> None:
        """Bring back those that the storage has."""
        rows = {key.decode(): row for key, row in self._broker.storage.table("vhosts").items()}
        rows.setdefault(DEFAULT_VHOST, b"")
        for name, row in sorted(rows.items()):
            settings = settings_of_row(row)
            opened = self._open(name, settings)
            if settings.is_being_deleted:
                self._leaving[name] = self._deletion(opened)
            else:
                self.by_name[name] = opened
        for name in self._configured:
            if name not in self._leaving:
                self.declare(name)

    @property
    def _configured(self) -> set[str]:
        """Those that the configuration names."""
        config = self._broker.config
        named = {listener.virtual_host for listener in config.all_listeners()}
        named |= {policy.vhost for policy in config.policies.values()}
        named |= {user.virtual_host for user in config.users.values()}
        return named - {""}

    def go_on(self) -> None:
        """The adapters have started: go on with deletions that the last stop cut off."""
        for deletion in self._leaving.values():
            deletion.begin()

    def get(self, name: str) -> VirtualHost:
        """The virtual host called ``name``. Raises NotFound."""
        found = self.by_name.get(name)
        if found is None:
            raise NotFound(f"vhost {name} not found")
        return found

    def chosen(self, connection: Connection, wanted: str) -> VirtualHost:
        """The virtual host of a client that asks for ``wanted``.

        That of its listener is binding. There ``/``, which many clients ask for without a choice,
        means it. Raises NotFound; AccessRefused where another is asked for.
        """
        own = connection.peer.listener.config.virtual_host
        if not own or wanted == own:
            return self.get(wanted)
        if wanted in ("", DEFAULT_VHOST):
            return self.get(own)
        access = self._broker.permissions.access(connection.identity, wanted)
        raise access.refused(f"access to vhost '{wanted}'")

    def declare(self, name: str, settings: VirtualHostSettings | None = None) -> VirtualHost:
        """The virtual host called ``name``, made when it is new, and set up so where ``settings``
        are given. Raises PreconditionFailed, LimitExceeded."""
        found = self.by_name.get(name)
        if found is None:
            check_vhost_name(name)
            if name in self._leaving:
                raise PreconditionFailed(f"virtual host '{name}' is being deleted")
            if len(self.by_name) >= MAX_VHOSTS:
                raise LimitExceeded(f"there are {MAX_VHOSTS} virtual hosts")
            found = self._open(name, settings or VirtualHostSettings())
            self.by_name[name] = found
            found.tell("vhost.created")
        elif settings is None or settings == found.settings:
            return found
        else:
            found.settings = settings
            self._broker.quotas.set_limits(VHOST, name, settings.limits)
            found.tell("vhost.set", **settings.described())
        self._broker.storage.table("vhosts").put(name.encode(), found.settings.row())
        return found

    def set_configured_policies(self, vhost: VirtualHost) -> None:
        """Give a virtual host its policies of the configuration, as they stand there."""
        for name, given in self._broker.config.policies.items():
            if given.vhost != vhost.name:
                continue
            policy = Policy(name, given.pattern, given.definition, given.apply_to, given.priority)
            known = vhost.policies.get(name)
            if known is None or known.declarer is not None or not known.is_same(policy):
                vhost.set_policy(policy)
                vhost.policy_walk.finish()

    def set_tracing(self, name: str, is_on: bool) -> None:
        """Switch the firehose of a virtual host on or off. Raises NotFound."""
        found = self.get(name)
        if is_on == (found.tap is not None):
            return
        found.watch(Firehose(self._broker, found) if is_on else None, found.tracer)
        # Routes know whether somebody looks on.
        found.topology_version += 1
        found.tell("vhost.tracing.on" if is_on else "vhost.tracing.off")

    def _open(self, name: str, settings: VirtualHostSettings) -> VirtualHost:
        broker = self._broker
        broker.quotas.set_limits(VHOST, name, settings.limits)
        opened = VirtualHost(
            broker,
            name,
            broker.dead_letters,
            broker.recovered_joins,
            broker.default_delivery,
            broker.authentication.declarers,
        )
        opened.settings = settings
        opened.watch(None, self.tracer)
        return opened

    def delete(self, name: str, done: Callable[[], None]) -> None:
        """Delete a virtual host with everything in it; its clients are sent away.

        It is gone for clients at once, as of the current write batch. ``done`` is called, later,
        in the turn in which the last of it goes. Raises NotFound; AccessRefused for one that the
        configuration names; PreconditionFailed for ``/``.
        """
        found = self.get(name)
        if name == DEFAULT_VHOST:
            raise PreconditionFailed(f"virtual host '{name}' cannot be deleted")
        if name in self._configured:
            raise AccessRefused(f"virtual host '{name}' stands in the configuration")
        found.settings = replace(found.settings, is_being_deleted=True)
        self._broker.storage.table("vhosts").put(name.encode(), found.settings.row())
        found.tell("vhost.deleted")
        del self.by_name[name]
        deletion = self._leaving[name] = self._deletion(found)
        deletion.waiting.append(done)
        deletion.begin()
        homeless = sum(user.virtual_host == name for user in self._broker.users.all())
        if homeless:
            logger.warning("vhost %s was the own one of %d users", name, homeless)

    def _deletion(self, vhost: VirtualHost) -> VhostDeletion:
        return VhostDeletion(self._broker, vhost, lambda: self._deleted(vhost.name))

    def _deleted(self, name: str) -> None:
        """The last part of a virtual host goes."""
        self._broker.storage.table("vhosts").delete(name.encode())
        self._broker.quotas.forget(VHOST, name)
        deletion = self._leaving.pop(name)
        if name in self._configured:
            # Since a start that found it on its way out.
            self.set_configured_policies(self.declare(name))
        for done in deletion.waiting:
            done()
