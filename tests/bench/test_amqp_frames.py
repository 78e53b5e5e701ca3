"""The encoders against pika's frame decoder."""

import pytest
from pika import frame as pika_frame
from pika import spec

from bench import amqp_frames
from bench.frames import SEQUENCE, FrameBlock, payload


def decode(data: bytes) -> list[object]:
    """Return all frames in ``data`` as pika reads them."""
    frames: list[object] = []
    while data:
        used, frame = pika_frame.decode_frame(data)
        assert used
        frames.append(frame)
        data = data[used:]
    return frames


def test_pika_reads_a_block_of_publishes() -> None:
    body = payload(64)
    frame, fields = amqp_frames.publish(1, "exchange", "key", body)
    block = FrameBlock(frame, fields, 2)
    block.column(SEQUENCE)[:] = [5, 6]
    frames = decode(bytes(block.take(2)))
    assert len(frames) == 6
    for number, (method, header, content) in zip((5, 6), (frames[:3], frames[3:]), strict=True):
        assert isinstance(method, pika_frame.Method)
        assert isinstance(method.method, spec.Basic.Publish)
        assert method.channel_number == 1
        assert method.method.exchange == "exchange"
        assert method.method.routing_key == "key"
        assert not method.method.mandatory
        assert isinstance(header, pika_frame.Header)
        assert header.body_size == 64
        assert header.properties == spec.BasicProperties(delivery_mode=2)
        assert isinstance(content, pika_frame.Body)
        assert content.fragment == number.to_bytes(8, "little") + body[8:]


@pytest.mark.parametrize("multiple", [False, True])
def test_pika_reads_a_block_of_acks(multiple: bool) -> None:
    ack = amqp_frames.ack(1, 0, multiple=multiple)
    assert len(ack) == amqp_frames.ACK_SIZE
    block = FrameBlock(ack, amqp_frames.ACK_FIELDS, 2)
    block.column(amqp_frames.DELIVERY_TAG)[:] = [1, 2**40]
    methods = [frame.method for frame in decode(bytes(block.take(2)))]  # type: ignore[attr-defined]
    assert [method.delivery_tag for method in methods] == [1, 2**40]
    assert all(isinstance(method, spec.Basic.Ack) for method in methods)
    assert all(method.multiple == multiple for method in methods)


def delivery(consumer_tag: str, number: int, properties: spec.BasicProperties) -> bytes:
    """Return a delivery as pika encodes it."""
    body = number.to_bytes(8, "little") + bytes(56)
    method = spec.Basic.Deliver(consumer_tag, number + 1, False, "amq.topic", "a.b")
    return (
        pika_frame.Method(1, method).marshal()
        + pika_frame.Header(1, len(body), properties).marshal()
        + pika_frame.Body(1, body).marshal()
    )


@pytest.mark.parametrize(
    "properties",
    [spec.BasicProperties(), spec.BasicProperties(delivery_mode=2, headers={"x": "y" * 40})],
)
def test_the_layout_of_deliveries_is_learned_from_the_first(
    properties: spec.BasicProperties,
) -> None:
    first, second = delivery("tag", 0, properties), delivery("tag", 1, properties)
    assert amqp_frames.delivery_layout(first[:-1], len(first) - 1) is None
    layout = amqp_frames.delivery_layout(first + second, len(first + second))
    assert layout is not None
    assert layout.size == len(first) == len(second)
    assert second.startswith(layout.head)
    tag_at = layout.fields[amqp_frames.DELIVERY_TAG][1]
    assert second[tag_at : tag_at + 8] == (2).to_bytes(8, "big")
    number_at = layout.fields[SEQUENCE][1]
    assert second[number_at : number_at + 8] == (1).to_bytes(8, "little")


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_an_incomplete_delivery_has_no_layout_yet(cut: int) -> None:
    data = delivery("tag", 0, spec.BasicProperties())
    assert amqp_frames.delivery_layout(data, cut) is None


def test_other_methods_are_not_taken_for_deliveries() -> None:
    close = pika_frame.Method(1, spec.Channel.Close(404, "NOT_FOUND", 0, 0)).marshal()
    with pytest.raises(ValueError, match=r"method \(20, 40\)"):
        amqp_frames.delivery_layout(close, len(close))
    heartbeat = pika_frame.Heartbeat().marshal()
    with pytest.raises(ValueError, match="frame of type 8"):
        amqp_frames.delivery_layout(heartbeat, len(heartbeat))
