"""What can be set about the AMQP adapter: the section ``[amqp]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trivium.errors import ConfigError
from trivium_amqp.codec.frames import MIN_FRAME_MAX

#: The smallest and the largest value of each key, by what the protocol's fields can say.
_RANGES: Final = {
    "frame_max": (MIN_FRAME_MAX, 0x7FFF_FFFF),
    "channel_max": (1, 0xFFFF),
    "heartbeat": (0, 0xFFFF),
    "max_message_bytes": (0, 1 << 62),
    "max_transaction_bytes": (1, 1 << 62),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpOptions:
    """Limits and defaults of one AMQP adapter. Raises ConfigError for a value out of its range.

    The defaults of the first three are RabbitMQ's.
    """

    #: bytes of a frame, offered in connection.tune; a client may ask for less
    frame_max: int = 131_072
    #: channels of a connection, offered in connection.tune
    channel_max: int = 2047
    #: seconds, offered in connection.tune, after which both sides say that they are alive; 0: none
    heartbeat: int = 60
    #: bytes of a message's body; 0: ``max_message_bytes`` of ``[limits]``, which is never exceeded
    max_message_bytes: int = 0
    #: whether SASL ANONYMOUS is offered where anonymous clients may come in; RabbitMQ 3 has it not
    anonymous_mechanism: bool = False
    #: bytes of what one transaction holds until it is committed
    max_transaction_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from {least} to {most}")
