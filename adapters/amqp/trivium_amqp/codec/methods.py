"""The methods of AMQP 0-9-1 with RabbitMQ's extensions, as data: their numbers and argument types.

``decode`` and ``encode`` follow the table. The two methods of the hot path, basic.publish and
basic.ack, are read in place by ``connection`` and ``channel`` and do not come by here.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from trivium_amqp.codec.tables import decode_table, encode_table, malformed


def _id(class_id: int, method_id: int) -> int:
    """Class and method number in one, as the first four bytes of a method frame have them."""
    return class_id << 16 | method_id


CONNECTION_START: Final[int] = _id(10, 10)
CONNECTION_START_OK: Final[int] = _id(10, 11)
CONNECTION_TUNE: Final[int] = _id(10, 30)
CONNECTION_TUNE_OK: Final[int] = _id(10, 31)
CONNECTION_OPEN: Final[int] = _id(10, 40)
CONNECTION_OPEN_OK: Final[int] = _id(10, 41)
CONNECTION_CLOSE: Final[int] = _id(10, 50)
CONNECTION_CLOSE_OK: Final[int] = _id(10, 51)
CONNECTION_BLOCKED: Final[int] = _id(10, 60)
CONNECTION_UNBLOCKED: Final[int] = _id(10, 61)
CONNECTION_UPDATE_SECRET: Final[int] = _id(10, 70)
CONNECTION_UPDATE_SECRET_OK: Final[int] = _id(10, 71)
CHANNEL_OPEN: Final[int] = _id(20, 10)
CHANNEL_OPEN_OK: Final[int] = _id(20, 11)
CHANNEL_FLOW: Final[int] = _id(20, 20)
CHANNEL_FLOW_OK: Final[int] = _id(20, 21)
CHANNEL_CLOSE: Final[int] = _id(20, 40)
CHANNEL_CLOSE_OK: Final[int] = _id(20, 41)
EXCHANGE_DECLARE: Final[int] = _id(40, 10)
EXCHANGE_DECLARE_OK: Final[int] = _id(40, 11)
EXCHANGE_DELETE: Final[int] = _id(40, 20)
EXCHANGE_DELETE_OK: Final[int] = _id(40, 21)
EXCHANGE_BIND: Final[int] = _id(40, 30)
EXCHANGE_BIND_OK: Final[int] = _id(40, 31)
EXCHANGE_UNBIND: Final[int] = _id(40, 40)
EXCHANGE_UNBIND_OK: Final[int] = _id(40, 51)
QUEUE_DECLARE: Final[int] = _id(50, 10)
QUEUE_DECLARE_OK: Final[int] = _id(50, 11)
QUEUE_BIND: Final[int] = _id(50, 20)
QUEUE_BIND_OK: Final[int] = _id(50, 21)
QUEUE_PURGE: Final[int] = _id(50, 30)
QUEUE_PURGE_OK: Final[int] = _id(50, 31)
QUEUE_DELETE: Final[int] = _id(50, 40)
QUEUE_DELETE_OK: Final[int] = _id(50, 41)
QUEUE_UNBIND: Final[int] = _id(50, 50)
QUEUE_UNBIND_OK: Final[int] = _id(50, 51)
BASIC_QOS: Final[int] = _id(60, 10)
BASIC_QOS_OK: Final[int] = _id(60, 11)
BASIC_CONSUME: Final[int] = _id(60, 20)
BASIC_CONSUME_OK: Final[int] = _id(60, 21)
BASIC_CANCEL: Final[int] = _id(60, 30)
BASIC_CANCEL_OK: Final[int] = _id(60, 31)
BASIC_PUBLISH: Final[int] = _id(60, 40)
BASIC_RETURN: Final[int] = _id(60, 50)
BASIC_DELIVER: Final[int] = _id(60, 60)
BASIC_GET: Final[int] = _id(60, 70)
BASIC_GET_OK: Final[int] = _id(60, 71)
BASIC_GET_EMPTY: Final[int] = _id(60, 72)
BASIC_ACK: Final[int] = _id(60, 80)
BASIC_REJECT: Final[int] = _id(60, 90)
BASIC_RECOVER_ASYNC: Final[int] = _id(60, 100)
BASIC_RECOVER: Final[int] = _id(60, 110)
BASIC_RECOVER_OK: Final[int] = _id(60, 111)
BASIC_NACK: Final[int] = _id(60, 120)
CONFIRM_SELECT: Final[int] = _id(85, 10)
CONFIRM_SELECT_OK: Final[int] = _id(85, 11)
TX_SELECT: Final[int] = _id(90, 10)
TX_SELECT_OK: Final[int] = _id(90, 11)
TX_COMMIT: Final[int] = _id(90, 20)
TX_COMMIT_OK: Final[int] = _id(90, 21)
TX_ROLLBACK: Final[int] = _id(90, 30)
TX_ROLLBACK_OK: Final[int] = _id(90, 31)

#: Arguments of each method, one letter each: ``o`` octet, ``h`` short, ``l`` long, ``L`` long long,
#: ``s`` short string as text, ``k`` short string as bytes (routing keys), ``S`` long string as
#: bytes, ``T`` field table, ``b`` bit; ``r`` is a reserved short and ``c`` a reserved short string
#: (4.2.5). Reserved ones are read and not handed over.
ARGUMENTS: Final[dict[int, str]] = {
    CONNECTION_START: "ooTSS",
    CONNECTION_START_OK: "TsSs",
    CONNECTION_TUNE: "hlh",
    CONNECTION_TUNE_OK: "hlh",
    CONNECTION_OPEN: "scb",
    CONNECTION_OPEN_OK: "c",
    CONNECTION_CLOSE: "hshh",
    CONNECTION_CLOSE_OK: "",
    CONNECTION_BLOCKED: "s",
    CONNECTION_UNBLOCKED: "",
    CONNECTION_UPDATE_SECRET: "Ss",
    CONNECTION_UPDATE_SECRET_OK: "",
    CHANNEL_OPEN: "c",
    CHANNEL_OPEN_OK: "S",
    CHANNEL_FLOW: "b",
    CHANNEL_FLOW_OK: "b",
    CHANNEL_CLOSE: "hshh",
    CHANNEL_CLOSE_OK: "",
    EXCHANGE_DECLARE: "rssbbbbbT",
    EXCHANGE_DECLARE_OK: "",
    EXCHANGE_DELETE: "rsbb",
    EXCHANGE_DELETE_OK: "",
    EXCHANGE_BIND: "rsskbT",
    EXCHANGE_BIND_OK: "",
    EXCHANGE_UNBIND: "rsskbT",
    EXCHANGE_UNBIND_OK: "",
    QUEUE_DECLARE: "rsbbbbbT",
    QUEUE_DECLARE_OK: "sll",
    QUEUE_BIND: "rsskbT",
    QUEUE_BIND_OK: "",
    QUEUE_PURGE: "rsb",
    QUEUE_PURGE_OK: "l",
    QUEUE_DELETE: "rsbbb",
    QUEUE_DELETE_OK: "l",
    QUEUE_UNBIND: "rsskT",
    QUEUE_UNBIND_OK: "",
    BASIC_QOS: "lhb",
    BASIC_QOS_OK: "",
    BASIC_CONSUME: "rssbbbbT",
    BASIC_CONSUME_OK: "s",
    BASIC_CANCEL: "sb",
    BASIC_CANCEL_OK: "s",
    BASIC_PUBLISH: "rskbb",
    BASIC_RETURN: "hssk",
    BASIC_DELIVER: "sLbsk",
    BASIC_GET: "rsb",
    BASIC_GET_OK: "Lbskl",
    BASIC_GET_EMPTY: "c",
    BASIC_ACK: "Lb",
    BASIC_REJECT: "Lb",
    BASIC_RECOVER_ASYNC: "b",
    BASIC_RECOVER: "b",
    BASIC_RECOVER_OK: "",
    BASIC_NACK: "Lbb",
    CONFIRM_SELECT: "b",
    CONFIRM_SELECT_OK: "",
    TX_SELECT: "",
    TX_SELECT_OK: "",
    TX_COMMIT: "",
    TX_COMMIT_OK: "",
    TX_ROLLBACK: "",
    TX_ROLLBACK_OK: "",
}

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_SIZES: Final = {"o": 1, "h": 2, "r": 2, "l": 4, "L": 8}


def decode(method: int, data: bytes, start: int, end: int) -> list[Any]:
    """The arguments in ``data[start:end]``, which lies inside a whole frame.

    Raises ConnectionException (502) when they are malformed.
    """
    values: list[Any] = []
    position = start
    bit = 0
    for letter in ARGUMENTS[method]:
        if letter == "b":
            if bit == 0:
                position += 1
                bit = 1
            if position > end:
                raise malformed("method arguments end too early")
            values.append(data[position - 1] & bit != 0)
            bit = bit << 1 & 0xFF
            continue
        bit = 0
        at = position
        if letter == "s" or letter == "k" or letter == "c":
            size = data[at] if at < end else 0
            at += 1
        elif letter == "S" or letter == "T":
            size = _U32.unpack_from(data, at)[0] if at + 4 <= end else 0
            at += 4
        else:
            size = _SIZES[letter]
        position = at + size
        if position > end:
            raise malformed("method arguments end too early")
        if letter == "s":
            try:
                values.append(data[at:position].decode())
            except UnicodeDecodeError:
                raise malformed("a name is not valid UTF-8") from None
        elif letter == "k" or letter == "S":
            values.append(data[at:position])
        elif letter == "T":
            values.append(decode_table(data, at, position))
        elif letter != "r" and letter != "c":
            values.append(int.from_bytes(data[at:position], "big"))
    if position != end:
        raise malformed("method arguments are longer than they should be")
    return values


def encode(method: int, *arguments: Any) -> bytes:
    """The payload of a method frame. Reserved arguments are not given."""
    parts = [_U32.pack(method)]
    given = iter(arguments)
    bits = -1
    shift = 0
    for letter in ARGUMENTS[method]:
        if letter == "b":
            bits = max(bits, 0) | (1 << shift if next(given) else 0)
            shift += 1
            continue
        if bits >= 0:
            parts.append(bytes((bits,)))
            bits, shift = -1, 0
        if letter == "c":
            parts.append(b"\x00")
        elif letter == "r":
            parts.append(b"\x00\x00")
        elif letter == "s" or letter == "k":
            argument = next(given)
            text = argument.encode() if letter == "s" else argument
            parts.append(bytes((len(text),)))
            parts.append(text)
        elif letter == "S":
            content = next(given)
            parts.append(_U32.pack(len(content)))
            parts.append(content)
        elif letter == "T":
            parts.append(encode_table(next(given).items()))
        else:
            parts.append(next(given).to_bytes(_SIZES[letter], "big"))
    if bits >= 0:
        parts.append(bytes((bits,)))
    return b"".join(parts)
