"""Methods of the classes channel, basic and confirm, except the hot ones (see ``channel``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trivium.common.quotas import SUBSCRIPTIONS
from trivium.errors import PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import STREAM, check_number, queue_type
from trivium.queues.queue import Queue, count_nothing
from trivium.queues.ready import LoadWaiter
from trivium.security.permissions import READ
from trivium_amqp import transactions
from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
    channel_exception,
    unfit_argument,
)
from trivium_amqp.codec.frames import content_frames, method_frame
from trivium_amqp.consumer import AmqpConsumer, cut_key, entry_header
from trivium_amqp.content import REPLY_TO_NAME
from trivium_amqp.describing import tell_channel
from trivium_amqp.replies import ConsumeOk, Reply
from trivium_amqp.states import CHANNEL_CLOSING
from trivium_amqp.stream_cursor import OFFSET, open_cursor
from trivium_amqp.transaction import REJECT, REQUEUE

if TYPE_CHECKING:
    from trivium_amqp.channel import Channel
    from trivium_amqp.connection import AmqpConnection

REPLY_TO: Final = REPLY_TO_NAME.decode()

#: Consumer argument: of several consumers the one with the highest gets what comes.
PRIORITY: Final = "x-priority"


def resolve_queue(channel: Channel, name: str, method: str) -> Queue:
    """The queue called ``name``, or the last declared one for an empty name (50.20, queue).

    ``method`` is the name of one that streams do not have.
    Raises ChannelException or TopologyError when there is none, or it is another's.
    """
    name = resolve_name(channel, name)
    if name in channel.vhost.streams:
        raise ConnectionException(
            NOT_IMPLEMENTED,
            f"{method} not supported by stream queues queue '{name}' in vhost"
            f" '{channel.vhost.name}'",
        )
    return channel.vhost.queue(name, channel.connection)


def resolve_name(channel: Channel, name: str) -> str:
    """``name``, or the last declared queue's when it is empty."""
    if name:
        return name
    if not channel.last_queue:
        raise ChannelException(NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def close(channel: Channel, arguments: list[Any]) -> None:
    """channel.close."""
    if channel.state is not CHANNEL_CLOSING:
        channel.publisher.flush_confirms()
        channel.publisher.line_up_confirms()
        channel.release()
    _forget(channel)
    frame = method_frame(channel.number, methods.CHANNEL_CLOSE_OK)
    channel.connection.replies.close_channel(channel.number, frame)


def close_ok(channel: Channel, arguments: list[Any]) -> None:
    """channel.close-ok: the number is free for another channel."""
    _forget(channel)


def _forget(channel: Channel) -> None:
    del channel.connection.channels[channel.number]
    channel.connection.usage.add_channels(-1)
    tell_channel(channel, "closed")


def flow(channel: Channel, arguments: list[Any]) -> None:
    """channel.flow: like RabbitMQ, a client cannot stop the server this way."""
    if not arguments[0]:
        raise ConnectionException(NOT_IMPLEMENTED, "active=false")
    channel.reply(methods.CHANNEL_FLOW_OK, True)


def qos(channel: Channel, arguments: list[Any]) -> None:
    """basic.qos, with RabbitMQ's meaning of ``global``: false for consumers to come, true for the
    channel as a whole."""
    prefetch_size, prefetch_count, is_global = arguments
    if prefetch_size:
        raise ConnectionException(NOT_IMPLEMENTED, f"prefetch_size!=0 ({prefetch_size})")
    if is_global:
        channel.limit = prefetch_count
    else:
        channel.prefetch = prefetch_count
    channel.reply(methods.BASIC_QOS_OK)
    if is_global:
        channel.serve_waiting()


def consume(channel: Channel, arguments: list[Any]) -> None:
    """basic.consume, of a queue or a stream."""
    name, tag, _no_local, no_ack, exclusive, nowait, options = arguments
    if tag in channel.consumers:
        raise ConnectionException(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if not tag:
        tag = f"amq.ctag-{secrets.token_urlsafe(16)}"
    channel.connection.usage.require(SUBSCRIPTIONS)
    if name == REPLY_TO:
        queue = _make_reply_queue(channel, no_ack)
    else:
        name = resolve_name(channel, name)
        channel.access.require(READ, "queue", name)
        stream = channel.vhost.streams.get(name)
        if stream is None:
            queue = channel.vhost.queue(name, channel.connection)
            _check_options(channel, name, queue_type(queue.arguments), options)
        else:
            _check_options(channel, name, STREAM, options)
            queue = open_cursor(channel, stream, no_ack, exclusive, options)
    priority = options.get(PRIORITY, 0)
    assert isinstance(priority, int)
    consumer = AmqpConsumer(channel, queue, tag, no_ack, channel.prefetch, priority)
    queue.add_consumer(consumer, exclusive)
    channel.consumers[tag] = consumer
    channel.connection.usage.add_subscriptions(1)
    if nowait:
        consumer.start()
    else:
        frame = method_frame(channel.number, methods.BASIC_CONSUME_OK, tag)
        channel.connection.replies.put(channel.number, ConsumeOk(frame, consumer))


def _check_options(channel: Channel, name: str, kind: str, options: dict[str, HeaderValue]) -> None:
    """Raise ChannelException for arguments of a consumer that a queue of this type has not."""
    what = f"queue '{name}' in vhost '{channel.vhost.name}'"
    for option in options:
        if option == (PRIORITY if kind == STREAM else OFFSET):
            raise ChannelException(PRECONDITION_FAILED, unfit_argument(option, what, kind))
    try:
        check_number(options.get(PRIORITY, 0), None, f"arg '{PRIORITY}' for {what}")
    except PreconditionFailed as error:
        raise channel_exception(error) from None


def _make_reply_queue(channel: Channel, no_ack: bool) -> Queue:
    """The queue of this channel's direct replies (amq.rabbitmq.reply-to)."""
    if not no_ack:
        raise ChannelException(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_queue is not None:
        raise ChannelException(PRECONDITION_FAILED, "reply consumer already set")
    channel.connection.owns_queues = True
    queue = channel.vhost.declare_queue(
        f"{REPLY_TO}.{secrets.token_urlsafe(24)}",
        auto_delete=True,
        owner=channel.connection,
        adapter="amqp",
    )
    channel.reply_queue = queue
    channel.publisher.set_reply_to(queue.name.encode())
    return queue


def cancel(channel: Channel, arguments: list[Any]) -> None:
    """basic.cancel. What the consumer holds stays unacknowledged; an unknown tag is no error."""
    tag, nowait = arguments
    consumer = channel.forget_consumer(tag)
    if consumer is not None:
        consumer.is_started = False
        if consumer.queue is channel.reply_queue:
            channel.reply_queue = None
            channel.publisher.set_reply_to(b"")
        consumer.queue.remove_consumer(consumer)
    if not nowait:
        channel.reply(methods.BASIC_CANCEL_OK, tag)


def get(channel: Channel, arguments: list[Any]) -> None:
    """basic.get."""
    name, no_ack = arguments
    channel.access.require(READ, "queue", resolve_name(channel, name))
    queue = resolve_queue(channel, name, "basic.get")
    channel.connection.replies.put(channel.number, GetReply(channel, queue, no_ack))


class GetReply(Reply):
    """The answer to basic.get. The message is taken when it can leave, and may have to be read from
    the disk first."""

    def __init__(self, channel: Channel, queue: Queue, no_ack: bool) -> None:
        super().__init__(b"")
        self.channel = channel
        self.is_loading = False
        self._queue = queue
        self._no_ack = no_ack

    def leave(self, connection: AmqpConnection) -> bool:
        channel = self.channel
        if (
            channel.state is CHANNEL_CLOSING
            or connection.channels.get(channel.number) is not channel
        ):
            return True
        if self.is_loading:
            return False
        queue = self._queue
        entry = queue.get(self._no_ack)
        if entry is None:
            if queue.ready.is_loading:
                self.is_loading = True
                queue.ready.await_load(_Loaded(self))
                return False
            count_nothing(queue)
            channel.publisher.traffic.got_nothing += 1
            connection.traffic.got_nothing += 1
            connection.send(method_frame(channel.number, methods.BASIC_GET_EMPTY))
            return True
        message = entry.message
        if queue.vhost.is_watched:
            held = None if self._no_ack else entry
            is_again = entry.is_redelivered
            queue.vhost.delivered(message, queue.name, is_again, connection, channel.number, held)
        connection.metrics.messages_sent += 1
        if entry.is_redelivered:
            connection.metrics.messages_redelivered += 1
        for traffic in (channel.publisher.traffic, connection.traffic):
            if entry.is_redelivered:
                traffic.redelivered += 1
            if self._no_ack:
                traffic.got_settled += 1
            else:
                traffic.got += 1
        connection.send(
            method_frame(
                channel.number,
                methods.BASIC_GET_OK,
                channel.new_delivery(entry, self._no_ack),
                entry.is_redelivered,
                message.address.exchange,
                cut_key(message.address.key),
                len(queue),
            )
        )
        connection.send_parts(
            content_frames(
                channel.number, entry_header(channel, entry), message.content, connection.frame_room
            )
        )
        return True


class _Loaded(LoadWaiter):
    """Tries again."""

    def __init__(self, reply: GetReply) -> None:
        self._reply = reply

    def loaded(self) -> None:
        self._reply.is_loading = False
        channel = self._reply.channel
        channel.connection.replies.advance(channel.number)


def reject(channel: Channel, arguments: list[Any]) -> None:
    """basic.reject."""
    tag, requeue = arguments
    _return_deliveries(channel, tag, False, requeue)


def nack(channel: Channel, arguments: list[Any]) -> None:
    """basic.nack."""
    tag, multiple, requeue = arguments
    _return_deliveries(channel, tag, multiple, requeue)


def _return_deliveries(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    taken = channel.take(tag, multiple)
    if taken is None:
        raise ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
    channel.dispose(taken, REQUEUE if requeue else REJECT)


def recover(channel: Channel, arguments: list[Any]) -> None:
    """basic.recover: everything unacknowledged on the channel goes back to its queues."""
    recover_async(channel, arguments)
    channel.reply(methods.BASIC_RECOVER_OK)


def recover_async(channel: Channel, arguments: list[Any]) -> None:
    """basic.recover-async."""
    if not arguments[0]:
        raise ConnectionException(NOT_IMPLEMENTED, "requeue=false")
    taken = channel.take(0, True)
    assert taken is not None
    transaction = channel.publisher.transaction
    channel.publisher.transaction = None
    channel.dispose(taken, REQUEUE)
    channel.publisher.transaction = transaction


def confirm_select(channel: Channel, arguments: list[Any]) -> None:
    """confirm.select."""
    if channel.publisher.transaction is not None:
        raise ChannelException(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.publisher.confirms = True
    if not arguments[0]:
        channel.reply(methods.CONFIRM_SELECT_OK)


HANDLERS: Final[dict[int, Callable[[Channel, list[Any]], None]]] = {
    methods.CHANNEL_CLOSE: close,
    methods.CHANNEL_CLOSE_OK: close_ok,
    methods.CHANNEL_FLOW: flow,
    methods.BASIC_QOS: qos,
    methods.BASIC_CONSUME: consume,
    methods.BASIC_CANCEL: cancel,
    methods.BASIC_GET: get,
    methods.BASIC_REJECT: reject,
    methods.BASIC_NACK: nack,
    methods.BASIC_RECOVER: recover,
    methods.BASIC_RECOVER_ASYNC: recover_async,
    methods.CONFIRM_SELECT: confirm_select,
    methods.TX_SELECT: transactions.select,
    methods.TX_COMMIT: transactions.commit,
    methods.TX_ROLLBACK: transactions.rollback,
}
