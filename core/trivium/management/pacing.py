"""How fast may be published over HTTP: by the rates that hold for the user, the virtual host and
the listener, as on every road. Who is too fast is answered later, or told when to come again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.common.timers import Wake
from trivium.observability.api import ApiRefused, refusal

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: Milliseconds that a request waits at most: less than tools wait for an answer.
MAX_WAIT_MS: Final = 5000
#: Requests that wait at once, and bytes of payloads in them.
MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 64 << 20


class Waiting:
    """What waits in one broker."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0


def must_wait(call: Call, messages: int, size: int) -> bool:
    """Whether what a call publishes, with ``size`` bytes of payloads, must wait; then the endpoint
    is called once more, and looks at everything anew, as soon as it may.

    Raises ApiRefused where that is too long, and while publishers wait for the memory or disk.
    """
    broker = call.broker
    if broker.block_reason is not None:
        text = f"publishers wait: {broker.block_reason or 'the disk is behind'}"
        raise ApiRefused(refusal(503, "service_unavailable", text, {"Retry-After": "1"}))
    if call.is_paid:
        return False
    now = broker.elapsed_ms
    quotas = broker.quotas
    accounts = call.accounts
    slowest = max(accounts, key=lambda account: account.wait(now))
    wait = slowest.wait(now)
    waiting = call.state.waiting
    if wait:
        quotas.waited(slowest)
        has_room = waiting.requests < MAX_WAITING and waiting.bytes + size <= MAX_WAITING_BYTES
        if wait > MAX_WAIT_MS or not has_room:
            headers = {"Retry-After": str(-(-wait // 1000))}
            raise ApiRefused(refusal(429, "too_many_requests", "publishing is too fast", headers))
    # What is to come is counted now, so that those behind wait for longer.
    for account in accounts:
        account.charge(messages, size, now)
    call.is_paid = True
    if not wait:
        return False
    waiting.requests += 1
    waiting.bytes += size

    def go_on() -> None:
        broker.timeouts.stop(wake)
        waiting.requests -= 1
        waiting.bytes -= size
        call.go_on(lambda: call.endpoint.carry_out(call))

    wake = Wake(go_on)
    call.state.waits.begin(call, go_on, lambda: call.may_enter(call.vhost.name))
    broker.timeouts.call_at(now + wait, wake)
    return True
