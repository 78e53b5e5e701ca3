"""The test vectors against a codec that knows no more than the document says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.native.tiny.wire import Kind, decode_body, encode_body, frame, pack, unpack

VECTORS: Final = json.loads(
    (Path(__file__).parents[3] / "docs/native-protocol-vectors.json").read_text(encoding="utf-8")
)
FRAMES: Final = {row["name"]: row for row in VECTORS["frames"]}


def plain(value: Any) -> Any:
    """What a body means, as the vectors write it."""
    if dataclasses.is_dataclass(value):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {name: plain(item) for name, item in fields.items() if item is not None}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_read_and_written_as_the_vectors_say(name: str) -> None:
    row = FRAMES[name]
    whole = bytes.fromhex(row["frame"])
    kind = Kind(row["type"])
    body = decode_body(kind, whole[13:])
    assert plain(body) == row.get("body", row.get("fields"))
    assert frame(kind, row["correlation"], encode_body(kind, body)) == whole


def test_properties_are_read_and_written_as_the_vectors_say() -> None:
    row = VECTORS["all_properties"]
    for digits in (row["properties"], VECTORS["properties"]):
        assert pack(unpack(bytes.fromhex(digits))).hex() == digits
    assert plain(unpack(bytes.fromhex(row["properties"]))) == row["body"]


@pytest.mark.parametrize("row", VECTORS["msgpack"], ids=lambda row: row["name"])
def test_msgpack_is_read_in_every_form(row: dict[str, Any]) -> None:
    assert plain(unpack(bytes.fromhex(row["packed"]))) == row["means"]


@pytest.mark.parametrize("row", VECTORS["wide"], ids=lambda row: row["as"])
def test_the_longest_form_means_what_the_shortest_does(row: dict[str, Any]) -> None:
    kind = Kind(FRAMES[row["as"]]["type"])
    body = decode_body(kind, bytes.fromhex(row["frame"])[13:])
    assert plain(body) == FRAMES[row["as"]]["body"]


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_is_cut_is_not_read(name: str) -> None:
    row = FRAMES[name]
    body = bytes.fromhex(row["frame"])[13:]
    # These end with their frames: they have no size of their own.
    if body and row["type"] != Kind.BATCH and name != "PUBLISH-COMPRESSED":
        with pytest.raises(ValueError, match="ends too early"):
            decode_body(Kind(row["type"]), body[:-1])
