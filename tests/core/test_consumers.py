"""Which of the consumers of a queue is next, in few steps however many there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from tests.support.amqp import Server, bodies, publish_frames
from tests.support.core import RecordingConsumer, message, open_vhost
from tests.support.steps import steps
from trivium.queues.consumers import Rotation
from trivium.queues.queue import Queue


class Model:
    """What a rotation is to do: rows as lists, by priority."""

    def __init__(self) -> None:
        self.standing: list[RecordingConsumer] = []
        self.aside: list[RecordingConsumer] = []

    def next(self) -> RecordingConsumer | None:
        while self.standing:
            highest = max(consumer.priority for consumer in self.standing)
            first = next(each for each in self.standing if each.priority == highest)
            self.standing.remove(first)
            if first.takes_delivery():
                self.standing.append(first)
                return first
            self.aside.append(first)
        return None

    def resume(self, consumer: RecordingConsumer) -> None:
        if consumer in self.aside:
            self.aside.remove(consumer)
            self.standing.append(consumer)


@given(st.lists(st.tuples(st.sampled_from("alntrR"), st.integers(0, 7)), max_size=60))
def test_a_rotation_does_what_lists_do(actions: list[tuple[str, int]]) -> None:
    consumers = [RecordingConsumer(0, priority=number % 3) for number in range(8)]
    rotation, model = Rotation(), Model()
    for action, number in actions:
        consumer = consumers[number]
        is_known = consumer in model.standing or consumer in model.aside
        if action == "a" and not is_known:
            rotation.add(consumer)
            model.standing.append(consumer)
        elif action == "l":
            assert rotation.remove(consumer) == is_known
            for row in (model.standing, model.aside):
                if consumer in row:
                    row.remove(consumer)
        elif action == "n":
            assert rotation.next() is model.next()
        elif action == "t":
            consumer.credit = 1 - consumer.credit
        elif action == "r":
            rotation.resume(consumer)
            model.resume(consumer)
        elif action == "R":
            rotation.resume_all()
            for each in list(model.aside):
                model.resume(each)
        assert len(rotation) == len(model.standing) + len(model.aside)


def fill(queue: Queue, count: int) -> None:
    for _ in range(count):
        queue.put(message(), b"")


def crowd(count: int, credit: int) -> tuple[Queue, list[RecordingConsumer]]:
    queue = open_vhost().declare_queue("q")
    consumers = [RecordingConsumer(credit, priority=number % 5) for number in range(count)]
    for consumer in consumers:
        queue.add_consumer(consumer)
    return queue, consumers


@pytest.mark.pure
def test_an_entry_finds_its_consumer_in_few_steps_however_many_there_are() -> None:
    def finds(count: int) -> int:
        queue, _ = crowd(count, 1000)
        return steps(lambda: queue.put(message(), b""))

    assert finds(1600) < 1.2 * finds(200)


@pytest.mark.pure
def test_one_of_many_busy_consumers_is_served_in_few_steps() -> None:
    def serves(count: int) -> int:
        queue, consumers = crowd(count, 1)
        fill(queue, count + 1)
        last = consumers[count // 2]
        assert len(queue) == 1

        def act() -> None:
            last.credit = 1
            queue.serve(last)

        found = steps(act)
        assert len(queue) == 0
        return found

    assert serves(1600) < 1.2 * serves(200)


@pytest.mark.pure
@pytest.mark.parametrize("is_reversed", [False, True])
def test_consumers_leave_in_few_steps_however_many_there_are(is_reversed: bool) -> None:
    def leaves(count: int) -> int:
        queue, consumers = crowd(count, 1)
        if is_reversed:
            consumers.reverse()

        def act() -> None:
            for consumer in consumers:
                queue.remove_consumer(consumer)

        return steps(act)

    assert leaves(1600) < 8 * 1.2 * leaves(200)


@pytest.mark.pure
def test_consumers_of_as_many_priorities_come_and_go_in_linear_steps() -> None:
    def comes_and_goes(count: int) -> int:
        def act() -> None:
            queue = open_vhost().declare_queue("q")
            queues.append(queue)
            consumers = [RecordingConsumer(1, priority=number) for number in range(count)]
            for consumer in consumers:
                queue.add_consumer(consumer)
            fill(queue, count + 1)
            for consumer in consumers:
                queue.remove_consumer(consumer)

        queues: list[Queue] = []
        result = steps(act)
        # No row of theirs is looked at any more.
        assert steps(queues[0].consumers.next) < 50
        return result

    assert comes_and_goes(800) < 4 * 1.3 * comes_and_goes(200)


@pytest.mark.pure
@pytest.mark.parametrize("is_global", [False, True])
def test_an_amqp_acknowledgement_takes_few_steps_however_many_consume(is_global: bool) -> None:
    def acknowledges(count: int) -> int:
        server = Server()
        client = server.open()
        client.declare("q")
        limit = count if is_global else 1
        client.call(Basic.Qos(prefetch_count=limit, global_=is_global))
        for number in range(count):
            client.consume("q", f"c{number}")
        other = server.open()
        other.feed(publish_frames("q") * (2 * count))
        assert len(bodies(client.take())) == count
        return steps(lambda: client.call(Basic.Ack(count // 2)))

    assert acknowledges(400) < 1.3 * acknowledges(100)
