"""The test vectors of the documents, as bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trivium.messages.message import Properties

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
    """Name and number of every frame type in the table, the reserved ones included."""
    text = (DOCUMENTS / "native-protocol.md").read_text()
    found: dict[str, int] = {}
    rows = re.findall(r"^\| (0x[0-9a-fx, to]+) \| ([A-Z_, ]+) \|", text, re.MULTILINE)
    for numbers, names in rows:
        values: list[int] = []
        for part in numbers.split(", "):
            first, _, last = part.partition(" to ")
            values += range(int(first, 16), int(last or first, 16) + 1)
        found |= dict(zip(names.split(", "), values, strict=True))
    return found


def fields_of(neutral: Properties) -> dict[str, object]:
    return {name: getattr(neutral, name) for name in FIELDS}
