"""Accounts and their limits, token buckets, and what refusals say."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.common.events import Events
from trivium.common.quotas import (
    CONNECTIONS,
    LISTENER,
    LOG_INTERVAL,
    QUEUES,
    TIDY_INTERVAL,
    USER,
    VHOST,
    Account,
    Bucket,
    Quotas,
    check_limits,
)
from trivium.errors import PreconditionFailed, QuotaExceeded
from trivium.security.limits import UserLimits
from trivium.storage.memory import MemoryStorage


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def test_a_bucket_has_as_much_at_once_as_comes_in_a_second() -> None:
    bucket = Bucket(10, 0)
    for _ in range(10):
        assert bucket.wait(0) == 0
        bucket.take(1, 0)
    assert bucket.wait(0) == 100
    assert bucket.wait(99) == 1
    assert bucket.wait(100) == 0
    # A longer silence saves up no more.
    assert bucket.wait(60_000) == 0
    bucket.take(10, 60_000)
    assert bucket.wait(60_000) == 100


def test_who_takes_more_than_there_is_waits_for_it() -> None:
    bucket = Bucket(10, 0)
    bucket.take(35, 0)
    assert bucket.wait(0) == 2600
    assert bucket.wait(2600) == 0
    bucket.take(1, 2600)
    bucket.set_rate(1000, 2600)
    assert bucket.wait(2600) == 1


def test_what_was_saved_up_at_a_higher_rate_is_not_kept() -> None:
    bucket = Bucket(1000, 0)
    bucket.set_rate(10, 0)
    bucket.take(10, 0)
    assert bucket.wait(0) == 100


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 5000)), max_size=50),
)
def test_no_more_is_let_through_than_the_rate_allows(
    rate: int, takes: list[tuple[int, int]]
) -> None:
    """Over any time: what comes in then, what may come at once, and one take too much."""
    bucket = Bucket(rate, 0)
    now = taken = largest = 0
    for count, silence in takes:
        now += silence + bucket.wait(now + silence)
        assert bucket.wait(now) == 0
        bucket.take(count, now)
        taken += count
        largest = max(largest, count)
        assert taken <= rate + now * rate / 1000 + largest


@pytest.mark.parametrize(
    ("scope", "limits", "text"),
    [
        (USER, {"max-things": 1}, "a user has no limit 'max-things', only max-connections"),
        (USER, {"max-streams": 1}, "a user has no limit 'max-streams'"),
        (LISTENER, {"max-connections": 1}, "a listener has no limit 'max-connections'"),
        (USER, {"max-queues": -2}, "must be a whole number, or -1"),
        (USER, {"max-queues": "1"}, "must be a whole number"),
        (USER, {"max-queues": True}, "must be a whole number"),
        (USER, {"max-queues": 1 << 60}, "must be a whole number"),
        (VHOST, {"publish-bytes-per-second": 0}, "at least 1.*publish nothing.*no permission"),
    ],
)
def test_limits_that_are_none_are_refused(scope: str, limits: dict[str, object], text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        check_limits(scope, limits)


def account_with(quotas: Quotas, scope: str, name: str, count: int) -> Account:
    account = quotas.account(scope, name)
    account.add(QUEUES, count)
    return account


def test_an_account_has_its_own_limits_and_otherwise_those_of_all() -> None:
    quotas = Quotas(Clock())
    quotas.set_defaults(USER, {"max-queues": 3, "max-connections": 5})
    quotas.set_limits(USER, "ann", {"max-queues": 1})
    quotas.set_limits(USER, "bob", {"max-queues": -1})
    ann, bob, nobody = (quotas.account(USER, name) for name in ("ann", "bob", ""))
    assert (ann.limit_of(QUEUES), ann.limit_of(CONNECTIONS)) == (1, 5)
    assert (bob.limit_of(QUEUES), bob.limit_of(CONNECTIONS)) == (-1, 5)
    # Clients without credentials are not one user in this.
    assert nobody.limit_of(QUEUES) == -1
    quotas.set_limits(USER, "ann", None)
    assert ann.limit_of(QUEUES) == 3
    assert quotas.own_limits(USER) == [("bob", {"max-queues": -1})]


def test_the_smallest_limit_that_is_reached_is_said() -> None:
    quotas = Quotas(Clock())
    quotas.set_limits(USER, "ann", {"max-queues": 3})
    quotas.set_limits(VHOST, "/", {"max-queues": 2})
    accounts = [account_with(quotas, USER, "ann", 3), account_with(quotas, VHOST, "/", 5)]
    with pytest.raises(QuotaExceeded) as caught:
        quotas.require(accounts, QUEUES)
    assert (caught.value.scope, caught.value.most) == (VHOST, 2)
    assert str(caught.value) == "limit max-queues (2) of vhost '/' is reached"
    quotas.require(accounts, CONNECTIONS)
    assert quotas.refusals == {(VHOST, QUEUES): 1}


def test_the_log_tells_of_a_limit_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    quotas = Quotas(clock)
    quotas.set_limits(USER, "ann", {"max-queues": 0})
    quotas.set_limits(USER, "bob", {"max-queues": 0})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            for name in ("ann", "bob"):
                with pytest.raises(QuotaExceeded):
                    quotas.require([quotas.account(USER, name)], QUEUES)
        assert len(caplog.records) == 2
        clock.now += LOG_INTERVAL
        with pytest.raises(QuotaExceeded):
            quotas.require([quotas.account(USER, "ann")], QUEUES)
    assert [record.message for record in caplog.records][2:] == [
        "limit max-queues (0) of user 'ann' is reached: more is refused"
    ]


def test_a_user_of_whom_nothing_is_left_is_forgotten() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    quotas.set_limits(USER, "rated", {"publish-messages-per-second": 1})
    for name in ("gone", "there", "rated"):
        quotas.account(USER, name)
    quotas.account(USER, "there").add(CONNECTIONS, 1)
    quotas.account(USER, "rated").charge(100, 0, clock.now)
    quotas.account(VHOST, "/")
    clock.now += TIDY_INTERVAL
    quotas.tick()
    assert {account.name for account in quotas.accounts()} == {"there", "rated", "/"}
    # Whoever comes back at once must not begin with a full bucket.
    clock.now += 100_000
    quotas.tick()
    assert {account.name for account in quotas.accounts()} == {"there", "/"}


def test_what_a_user_has_counted_is_kept_until_it_is_deleted() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    for name in ("ann", "bob", "cid", "dan"):
        quotas.account(USER, name).traffic.published += 1
    for name in ("ann", "bob"):
        quotas.deleted(USER, name)
    # Whoever has that name now goes on.
    assert quotas.account(USER, "bob").traffic.published == 1
    clock.now += TIDY_INTERVAL
    quotas.tick()
    assert [account.name for account in quotas.accounts()] == ["bob", "cid", "dan"]


@pytest.mark.pure
def test_what_many_users_have_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.common.quotas.MOST_GONE", 2)
    clock = Clock()
    quotas = Quotas(clock)
    for name in ("ann", "bob", "cid", "dan"):
        quotas.account(USER, name).traffic.bytes_received += 1
    quotas.account(USER, "bob").add(CONNECTIONS, 1)
    clock.now += TIDY_INTERVAL
    quotas.tick()
    assert [account.name for account in quotas.accounts()] == ["bob", "cid", "dan"]


def test_defaults_hold_for_who_is_there_and_nothing_for_what_is_deleted() -> None:
    quotas = Quotas(Clock())
    ann = quotas.account(USER, "ann")
    farm = quotas.account(VHOST, "farm")
    quotas.set_defaults(USER, {"max-queues": 3})
    assert (ann.limit_of(QUEUES), farm.limit_of(QUEUES)) == (3, -1)
    quotas.set_limits(VHOST, "farm", {"max-queues": 1})
    farm.add(QUEUES, 1)
    quotas.forget(VHOST, "farm")
    again = quotas.account(VHOST, "farm")
    assert (again.limit_of(QUEUES), again.used[QUEUES]) == (-1, 0)
    assert quotas.own_limits(VHOST) == []


def test_limits_of_the_configuration_hold_before_what_commands_set_earlier() -> None:
    table = MemoryStorage().table("limits")
    limits = UserLimits(Quotas(Clock()), {}, Events())
    limits.open(table)
    limits.set("ann", {"max-queues": 1})
    quotas = Quotas(Clock())
    UserLimits(quotas, {"ann": {"max-queues": 5}}, Events()).open(table)
    assert quotas.limits(USER, "ann") == {"max-queues": 5}
