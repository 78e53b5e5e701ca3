"""What both HTTP APIs do with policies, and with those of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.errors import NotFound
from trivium.observability.api import ApiAnswer
from trivium.vhost.policy_walk import PolicyWaiter

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.routing.exchanges import Declarer
    from trivium.vhost.policies import Policies, Policy
    from trivium.vhost.virtual_host import VirtualHost


class _InForce(PolicyWaiter):
    """Answers once policies are in force."""

    def __init__(self, call: Call, status: int) -> None:
        self._call = call
        self._answer = ApiAnswer(status)

    def in_force(self) -> None:
        self._call.answer_durably(self._answer)


class PolicyKind:
    """The usual policies, or those of operators."""

    def __init__(self, is_of_operators: bool) -> None:
        self._is_of_operators = is_of_operators

    def of(self, vhost: VirtualHost) -> Policies:
        """Those of a virtual host."""
        return vhost.policies.operators if self._is_of_operators else vhost.policies

    def all(self, call: Call) -> list[tuple[VirtualHost, Policy]]:
        """Those that the caller may see."""
        return [(vhost, policy) for vhost in call.vhosts() for policy in self.of(vhost).all()]

    def get(self, call: Call, name: str) -> Policy:
        """One, in the virtual host of the path. Raises NotFound."""
        found = self.of(call.vhost).get(name)
        if found is None:
            raise NotFound(f"no policy '{name}'")
        return found

    def setter(self, call: Call) -> Declarer | None:
        """By whose rights one is in force: what operators bound passes nothing on."""
        return None if self._is_of_operators else call.policy_setter

    def set(self, vhost: VirtualHost, policy: Policy) -> None:
        """Add or replace one. Raises PreconditionFailed."""
        vhost.set_policy(policy, self._is_of_operators)

    def put(self, call: Call, policy: Policy) -> None:
        """The same, answered once it is in force everywhere: 201 where there was none, else 204."""
        vhost = call.vhost
        is_new = self.of(vhost).get(policy.name) is None
        self.set(vhost, policy)
        _when_in_force(call, 201 if is_new else 204)

    def delete(self, call: Call, name: str) -> None:
        """Remove one; answered once what then holds is in force everywhere. Raises NotFound."""
        self.get(call, name)
        call.vhost.delete_policy(name, self._is_of_operators)
        _when_in_force(call, 204)


def _when_in_force(call: Call, status: int) -> None:
    walk = call.vhost.policy_walk
    waiter = _InForce(call, status)
    if walk.is_done:
        waiter.in_force()
    else:
        walk.wait(waiter)


USUAL: Final = PolicyKind(False)
OF_OPERATORS: Final = PolicyKind(True)
