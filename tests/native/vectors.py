"""The test vectors of the documents, as bytes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from trivium.messages.message import Properties
from trivium.streams.compression import decompress

#: the fields of neutral properties
FIELDS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "reply_to_topic",
    "expiration",
    "message_id",
    "timestamp",
    "type_",
    "user_id",
    "app_id",
    "payload_is_text",
    "key",
    "headers",
)
DOCUMENTS = Path(__file__).parents[2] / "docs"
_LINE = re.compile(r"((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?: {3,}\S.*)?")


def block_bytes(block: str, batch: bytes = b"") -> bytes:
    """The bytes of a block: hexadecimal at the start of each line, or the word (batch)."""
    found = bytearray()
    for line in block.splitlines():
        if line == "(batch)":
            found += batch
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        found += bytes.fromhex(match[1])
    return bytes(found)


def _as_data() -> Any:
    return json.loads((DOCUMENTS / "native-protocol-vectors.json").read_text())


def frames() -> dict[str, bytes]:
    """The frames by name."""
    return {row["name"]: bytes.fromhex(row["frame"]) for row in _as_data()["frames"]}


def meanings() -> list[tuple[str, int, int, object]]:
    """Name, type, correlation id and msgpack body of the frames that have one."""
    return [
        (row["name"], row["type"], row["correlation"], _with_bytes(row["body"]))
        for row in _as_data()["frames"]
        if "body" in row
    ]


def rows() -> list[dict[str, Any]]:
    """The frames with all that is said of them."""
    found: list[dict[str, Any]] = _as_data()["frames"]
    return found


def all_properties() -> tuple[bytes, dict[int, Any]]:
    """Properties with every key, and what they mean."""
    found = _as_data()["all_properties"]
    body = {int(key): _with_bytes(value) for key, value in found["body"].items()}
    return bytes.fromhex(found["properties"]), body


def refused() -> list[dict[str, Any]]:
    """Frames that the broker refuses, with the state in which they come, and what it says."""
    found: list[dict[str, Any]] = _as_data()["refused"]
    return found


def wide() -> dict[str, bytes]:
    """Frames whose msgpack is as long as can be, by the name of the one that means the same."""
    return {row["as"]: bytes.fromhex(row["frame"]) for row in _as_data()["wide"]}


def wide_properties() -> bytes:
    """The properties with every key, as long as can be."""
    return bytes.fromhex(_as_data()["all_properties"]["wide"])


def msgpack_forms() -> list[tuple[str, bytes, Any]]:
    """Name, bytes and meaning of msgpack in every form."""
    rows = _as_data()["msgpack"]
    return [(row["name"], bytes.fromhex(row["packed"]), _with_bytes(row["means"])) for row in rows]


def msgpack_refused() -> dict[str, bytes]:
    """What is no msgpack of this protocol, by name."""
    return {row["name"]: bytes.fromhex(row["packed"]) for row in _as_data()["msgpack_refused"]}


def as_json(value: Any) -> Any:
    """A value as the vectors write it."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    return value


# The bodies that are no msgpack, read by the tables of the document and nothing else


def _message(body: bytes, at: int) -> tuple[dict[str, Any], int]:
    flags, priority, exchange, key, reserved, properties, payload = struct.unpack_from(
        "<BBHHHII", body, at
    )
    assert reserved == 0
    parts: list[bytes] = []
    at += 16
    for size in (exchange, key, properties, payload):
        parts.append(body[at : at + size])
        at += size
    found = {
        "flags": flags,
        "priority": priority,
        "exchange": parts[0].decode(),
        "routing_key": parts[1],
        "properties": parts[2],
        "payload": parts[3],
    }
    return found, at


def _messages(body: bytes, at: int, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(count):
        message, at = _message(body, at)
        found.append(message)
    assert at == len(body)
    return found


def _published(body: bytes) -> dict[str, Any]:
    count, flags = struct.unpack_from("<II", body)
    if flags & 6:
        size: int = struct.unpack_from("<I", body, 8)[0]
        # What is compressed are messages, as they are without a codec.
        _messages(decompress(flags >> 1, body[12:], size), 0, count)
        return {"count": count, "flags": flags, "size": size, "packed": body[12:]}
    at = 8
    found: dict[str, Any] = {"flags": flags}
    if flags & 1:
        size, epoch, sequence = struct.unpack_from("<IIQ", body, at)
        name = body[at + 16 : at + 16 + size].decode()
        found["producer"] = {"name": name, "epoch": epoch, "sequence": sequence}
        at += 16 + size
    return found | {"messages": _messages(body, at, count)}


def _delivered(body: bytes) -> dict[str, Any]:
    names = ("subscription", "flags", "protocol", "returns", "tag", "arrival", "lifetime")
    found: dict[str, Any] = dict(zip(names, struct.unpack_from("<IBBHQqq", body), strict=True))
    return found | {"message": _messages(body, 32, 1)[0]}


def _settled(body: bytes) -> dict[str, Any]:
    names = ("subscription", "flags", "first", "last")
    return dict(zip(names, struct.unpack("<IIQQ", body), strict=True))


def _batch(body: bytes) -> dict[str, Any]:
    subscription, _, base = struct.unpack_from("<IIq", body)
    return {"subscription": subscription, "base_offset": base, "batch": body[16:]}


def _credited(body: bytes) -> dict[str, Any]:
    return dict(zip(("subscription", "amount"), struct.unpack("<IQ", body), strict=True))


def _confirmed(body: bytes) -> dict[str, Any]:
    return {"count": struct.unpack("<I", body)[0]}


def _fetched(body: bytes) -> dict[str, Any]:
    first, mark, count, flags = struct.unpack_from("<qqII", body)
    at = 24
    after: dict[str, Any] = {}
    if flags & 1:
        after["next_offset"] = struct.unpack_from("<q", body, at)[0]
        at += 8
    batches: list[dict[str, Any]] = []
    for _ in range(count):
        base, size, before = struct.unpack_from("<qII", body, at)
        batch = body[at + 16 : at + 16 + size]
        batches.append({"base_offset": base, "before": before, "batch": batch})
        at += 16 + (size + 7) // 8 * 8
    assert at == len(body)
    return {"first_offset": first, "high_watermark": mark, **after, "batches": batches}


def _with_map(body: bytes) -> dict[str, Any]:
    size, count = struct.unpack_from("<II", body)
    fields = msgpack.unpackb(body[8 : 8 + size])
    return {"map": fields, "messages": _messages(body, 8 + size, count)}


def _empty(body: bytes) -> dict[str, Any]:
    assert body == b""
    return {}


_BINARY: dict[int, Callable[[bytes], dict[str, Any]]] = {
    **dict.fromkeys((0x05, 0x06, 0x09), _empty),
    0x10: _published,
    0x11: _confirmed,
    0x22: _delivered,
    0x23: _batch,
    0x24: _credited,
    **dict.fromkeys((0x25, 0x26), _settled),
    0x31: _fetched,
    **dict.fromkeys((0x50, 0x55), _with_map),
}


def binary_fields(kind: int, body: bytes) -> dict[str, Any]:
    """What the body of a frame says that is no msgpack."""
    return _BINARY[kind](body)


def _with_bytes(value: Any) -> Any:
    """Bytes are written as an object with their hexadecimal digits."""
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"bytes"}:
            return bytes.fromhex(value["bytes"])
        return {name: _with_bytes(item) for name, item in value.items()}
    return value


def record_batch() -> bytes:
    """The record batch."""
    return bytes.fromhex(_as_data()["record_batch"])


def properties() -> bytes:
    """The properties."""
    return bytes.fromhex(_as_data()["properties"])


# The same in the text


def told_record_batch() -> bytes:
    text = (DOCUMENTS / "record-batch.md").read_text()
    (block,) = re.findall(r"```record-batch\n(.*?)```", text, re.DOTALL)
    return block_bytes(block)


def told_frames() -> dict[str, bytes]:
    text = (DOCUMENTS / "native-protocol.md").read_text()
    blocks = re.findall(r"```frame (\S+)\n(.*?)```", text, re.DOTALL)
    batch = told_record_batch()
    return {name: block_bytes(block, batch) for name, block in blocks}


def told_properties() -> bytes:
    text = (DOCUMENTS / "native-protocol.md").read_text()
    (block,) = re.findall(r"```properties\n(.*?)```", text, re.DOTALL)
    return block_bytes(block)


def error_codes() -> dict[int, str]:
    text = (DOCUMENTS / "native-protocol.md").read_text()
    rows = re.findall(r"^\| (\d{3}) \| ([a-z ]+) \|", text, re.MULTILINE)
    return {int(code): name for code, name in rows}


def frame_types() -> dict[str, int]:
    """Name and number of every frame type in the table."""
    return {name: number for name, number, _ in _frame_rows()}


def directions() -> set[tuple[int, str]]:
    """Which side sends frames of which type."""
    found: set[tuple[int, str]] = set()
    for _, number, senders in _frame_rows():
        found |= {(number, sender) for sender in ("client", "broker") if sender in senders}
    return found


def _frame_rows() -> list[tuple[str, int, tuple[str, ...]]]:
    """Name, number and senders of every frame type in the table."""
    text = (DOCUMENTS / "native-protocol.md").read_text()
    found: list[tuple[str, int, tuple[str, ...]]] = []
    rows = re.findall(r"^\| (0x[0-9a-fx, to]+) \| ([A-Z_, ]+) \| ([a-z, ]+) \|", text, re.MULTILINE)
    for numbers, names, senders in rows:
        values: list[int] = []
        for part in numbers.split(", "):
            first, _, last = part.partition(" to ")
            values += range(int(first, 16), int(last or first, 16) + 1)
        sides = senders.replace("both", "client broker").replace(", ", "|").split("|")
        for at, (name, value) in enumerate(zip(names.split(", "), values, strict=True)):
            # One for all of a row, or one for each.
            side = sides[at] if len(sides) > 1 else sides[0]
            found.append((name, value, tuple(side.split())))
    return found


def fields_of(neutral: Properties) -> dict[str, object]:
    return {name: getattr(neutral, name) for name in FIELDS}
