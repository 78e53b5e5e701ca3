"""The section ``[amqp]``: what each key of it does, by the frames that clients see."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Connection, Tx

from tests.support.amqp import PROTOCOL_HEADER, Server, assert_connection_closed, start_ok
from trivium.config import Config, LimitsConfig, Listen, ListenerConfig
from trivium.errors import ConfigError
from trivium_amqp.options import AmqpOptions


def limited(of_all: int = 1 << 24, /, **limits: Any) -> Config:
    """A configuration with these keys of ``[amqp]``."""
    return Config(
        listen={"amqp": Listen(0)},
        limits=LimitsConfig(max_message_bytes=of_all),
        protocols={"amqp": AmqpOptions(**limits)},
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("frame_max", 4095),
        ("channel_max", 0),
        ("channel_max", 65_536),
        ("heartbeat", -1),
        ("heartbeat", 65_536),
        ("max_message_bytes", -1),
        ("max_transaction_bytes", 0),
    ],
)
def test_a_value_out_of_its_range_is_refused(key: str, value: int) -> None:
    keys: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=f"^{key} must be from "):
        AmqpOptions(**keys)


def test_connection_tune_offers_what_is_set() -> None:
    client = Server(None, limited(frame_max=8192, channel_max=3, heartbeat=7)).connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    tune = client.take()[-1]
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (3, 8192, 7)


@pytest.mark.parametrize(
    ("tune_ok", "text"),
    [
        (
            Connection.TuneOk(4, 8192, 0),
            "negotiated channel_max = 4 is higher than the maximum allowed value (3)",
        ),
        (
            Connection.TuneOk(3, 8193, 0),
            "negotiated frame_max = 8193 is higher than the maximum allowed value (8192)",
        ),
    ],
)
def test_tune_ok_beyond_what_is_set_is_530(tune_ok: Connection.TuneOk, text: str) -> None:
    client = Server(None, limited(frame_max=8192, channel_max=3)).connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    client.send(tune_ok, channel=0)
    assert_connection_closed(client, 530, f"NOT_ALLOWED - {text}")


@pytest.mark.parametrize(("own", "of_all", "held_to"), [(90, 200, 90), (0, 80, 80), (300, 70, 70)])
def test_the_largest_message_is_the_smaller_of_both_limits(
    own: int, of_all: int, held_to: int
) -> None:
    client = Server(None, limited(of_all, max_message_bytes=own)).open()
    client.declare("q")
    client.publish("q", bytes(held_to))
    assert client.get("q") == bytes(held_to)
    client.publish("q", bytes(held_to + 1))
    (close,) = client.take()
    assert close.reply_text == (
        "PRECONDITION_FAILED -"
        f" message size {held_to + 1} is larger than configured max size {held_to}"
    )


def test_a_transaction_is_limited_in_bytes() -> None:
    client = Server(None, limited(max_transaction_bytes=1000)).open()
    client.declare("q")
    client.ask(Tx.Select())
    client.publish("q", bytes(600))
    assert client.take() == []
    client.ask(Tx.Rollback())
    client.publish("q", bytes(600))
    assert client.take() == []
    client.publish("q", bytes(600))
    (close,) = client.take()
    text = "PRECONDITION_FAILED - transaction is larger than 1000 bytes"
    assert (close.reply_code, close.reply_text) == (406, text)


def test_a_listener_has_options_of_its_own() -> None:
    own = AmqpOptions(channel_max=3, frame_max=4096, heartbeat=1, max_message_bytes=80)
    listener = ListenerConfig(protocol="amqp", address="127.0.0.1:0", options=own)
    client = Server(None, Config(listen={}, listeners=(listener,))).connect()
    client.feed(PROTOCOL_HEADER)
    client.send(start_ok(), channel=0)
    tune = client.take()[-1]
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (3, 4096, 1)
