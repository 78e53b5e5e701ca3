"""Runs: messages that came in a row are taken together, to the effect that each alone has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.core import RecordingConsumer, drain, message, open_vhost
from tests.support.storages import HeldStorage
from trivium.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    HeaderValue,
    Message,
)
from trivium.routing.exchanges import ACCEPTED, Binding

MODES = (AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)


@dataclass(frozen=True)
class Run:
    size: int
    mode: int


@dataclass(frozen=True)
class Credit:
    consumer: int
    count: int


@dataclass(frozen=True)
class Settle:
    consumer: int


class Durable:
    """What was done becomes durable."""


class Get:
    """The next entry is taken without a consumer, and put back."""


Step = Run | Credit | Settle | Durable | Get

STEPS = st.lists(
    st.one_of(
        st.builds(Run, st.integers(1, 9), st.sampled_from(MODES)),
        st.builds(Credit, st.integers(0, 1), st.integers(1, 5)),
        st.builds(Settle, st.integers(0, 1)),
        st.builds(Durable),
        st.builds(Get),
    ),
    max_size=25,
)


class World:
    """A queue with consumers, whose runs come together or one by one."""

    def __init__(self, is_stored: bool, consumers: int, together: bool) -> None:
        self.storage = HeldStorage() if is_stored else None
        self.queue = open_vhost(self.storage).declare_queue("q", durable=is_stored)
        self.consumers = [RecordingConsumer(credit=2) for _ in range(consumers)]
        for consumer in self.consumers:
            self.queue.add_consumer(consumer)
        self.together = together
        self.number = 0
        self.answers: list[list[int]] = []

    def take(self, step: Step) -> None:
        if isinstance(step, Run):
            self.publish(step)
        elif isinstance(step, Durable):
            if self.storage is not None:
                self.storage.commit()
                self.storage.complete()
        elif isinstance(step, Get):
            entry = self.queue.get()
            if entry is not None:
                self.queue.requeue(entry)
                self.queue.dispatch()
        elif step.consumer < len(self.consumers):
            consumer = self.consumers[step.consumer]
            if isinstance(step, Credit):
                consumer.credit += step.count
                self.queue.serve(consumer)
            else:
                for entry in consumer.entries:
                    self.queue.settle(entry)

    def publish(self, run: Run) -> None:
        messages: list[Message] = []
        for _ in range(run.size):
            self.number += 1
            messages.append(
                message(b"%d" % self.number, mode=run.mode, persistent=run.mode != AT_MOST_ONCE)
            )
        if self.together:
            assert self.queue.takes_runs(run.mode)
            self.answers.append([self.queue.accept_run(messages)] * run.size)
        else:
            self.answers.append([self.queue.accept(each) for each in messages])

    def state(self) -> object:
        queue = self.queue
        return (
            self.answers,
            [
                [
                    (entry.message.payload, entry.offset, entry.is_stored, entry.is_redelivered)
                    for entry in consumer.entries
                ]
                for consumer in self.consumers
            ],
            (
                len(queue),
                queue.unsettled,
                queue.counters.published,
                queue.counters.settled,
                queue.ready.bytes,
            ),
        )


@example(steps=[Run(3, EXACTLY_ONCE), Durable()], is_stored=True, consumers=1)
@given(steps=STEPS, is_stored=st.booleans(), consumers=st.integers(0, 2))
def test_a_run_has_the_effect_of_its_messages_one_by_one(
    steps: list[Step], is_stored: bool, consumers: int
) -> None:
    together = World(is_stored, consumers, together=True)
    singly = World(is_stored, consumers, together=False)
    for step in steps:
        together.take(step)
        singly.take(step)
        assert together.state() == singly.state()
    if together.storage is not None and singly.storage is not None:
        log = next(iter(together.queue.ready.sub_queues)).log
        other = next(iter(singly.queue.ready.sub_queues)).log
        assert log is not None
        assert other is not None
        assert log.read(0, 1000, 1 << 20) == other.read(0, 1000, 1 << 20)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 3},
        {"x-message-ttl": 1000},
        {"x-max-priority": 3},
        {"x-delivery": "exactly-once"},
        {"x-message-deduplication": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_queue_out_of_the_ordinary_takes_no_runs(arguments: dict[str, HeaderValue]) -> None:
    queue = open_vhost().declare_queue("q", durable=True, arguments=arguments)
    assert not queue.takes_runs(AT_LEAST_ONCE)


def test_a_route_takes_runs_that_lead_to_one_queue() -> None:
    vhost = open_vhost()
    fanout = vhost.exchanges["amq.fanout"]
    first = vhost.declare_queue("first", durable=True)
    assert not vhost.route(fanout, b"k").takes_runs(AT_LEAST_ONCE)
    vhost.bind(fanout, Binding(first, b""))
    route = vhost.route(fanout, b"k")
    assert route.takes_runs(AT_LEAST_ONCE)
    assert vhost.publish_run([message(b"1"), message(b"2")], route) == ACCEPTED
    assert drain(first) == [b"1", b"2"]
    # A message that several queues keep is stored once, if one after the other keeps it.
    vhost.bind(fanout, Binding(vhost.declare_queue("second", durable=True), b""))
    assert not vhost.route(fanout, b"k").takes_runs(AT_LEAST_ONCE)
