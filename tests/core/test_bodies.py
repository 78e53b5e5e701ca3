"""Bodies of requests as JSON: ``trivium.observability.bodies``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.observability import bodies
from trivium.observability.bodies import RepeatedName, TooManyValues, parse, parse_large

MANY = 1 << 30
#: characters of a piece here
PIECE = 16
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
)  # fmt: skip
#: of which texts are made that are JSON, or nearly
SCRAPS = st.sampled_from(
    [
        *('"', "\\", "\\u", "\\ud83d", "\\ude00", "\\u00e9", '\\"', "\\\\", "\\n", "\\q", "é"),
        *("[", "]", ",", "1", "{", "}", ":", " ", "\n", "\x01", "\U0001f600", "aaaaa"),
    ]
)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_PIECE", PIECE)


def read(data: bytes) -> object:
    """What the standard library reads; ValueError for what no UTF-8 can say again."""
    found = json.loads(data.decode())
    json.dumps(found, ensure_ascii=False).encode()
    return found


def outcome(read_one: Any, *arguments: object) -> object:
    try:
        return read_one(*arguments)
    except ValueError:
        return ValueError


@pytest.mark.usefixtures("small_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, st.booleans())
def test_a_large_body_is_read_as_a_small_one(value: object, is_ascii: bool) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    wanted = outcome(read, data)
    assert outcome(parse_large, bytearray(data), MANY, False) == wanted
    assert outcome(parse, bytearray(data), False) == wanted


@pytest.mark.usefixtures("small_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SCRAPS, max_size=30).map("".join))
def test_texts_in_pieces_are_what_they_are_in_one(text: str) -> None:
    for data in (f'["{text}"]'.encode(), text.encode()):
        wanted = outcome(read, data)
        assert outcome(parse_large, bytearray(data), MANY, False) == wanted
        assert outcome(parse, bytearray(data), False) == wanted


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("before", range(20))
def test_halves_of_a_character_are_found_together_wherever_they_are(before: int) -> None:
    for text in (r"\ud83d\ude00" * 5, "é" * 20, r"\u00e9" * 9, r"\\" * 20):
        data = f'["{"x" * before}{text}"]'.encode()
        assert parse_large(bytearray(data), MANY) == json.loads(data)
    data = f'["{"x" * before}\\ude00"]'.encode()
    assert outcome(parse_large, bytearray(data), MANY) is ValueError


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("item", ["x", r"\n", r"\"", "é", r"\u00e9"])
def test_no_more_than_a_piece_of_a_text_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    sizes: list[int] = []

    def scanstring(text: str, at: int, strict: bool) -> tuple[str, int]:
        found: tuple[str, int] = read_one(text, at, strict)
        sizes.append(found[1] - at)
        return found

    decoder: Any = json.decoder
    read_one = decoder.scanstring
    data = f'["{item * 100}"]'.encode()
    wanted = json.loads(data)
    monkeypatch.setattr(decoder, "scanstring", scanstring)
    assert parse_large(bytearray(data), MANY) == wanted
    assert len(sizes) > 4
    assert max(sizes) <= PIECE + 1


@pytest.mark.parametrize("text", ["[1, 2, []]", '{"a": 1, "b": {"c": null}}', '["", true, 0.5]'])
def test_values_in_lists_and_objects_are_counted(text: str) -> None:
    assert parse_large(bytearray(text.encode()), 3) == json.loads(text)
    with pytest.raises(TooManyValues):
        parse_large(bytearray(text.encode()), 2)


@pytest.mark.parametrize("text", ["NaN", "[1e999]", '"', '["a]', "[1]]", "", "{1: 2}", '"\xff"'])
def test_what_is_no_json_is_refused(text: str) -> None:
    data = bytearray(text.encode("latin-1"))
    with pytest.raises(ValueError):
        parse_large(data, MANY)
    with pytest.raises(ValueError):
        parse(data)


@pytest.mark.parametrize("data", [b'{"a":1,"a":1}', b'[{"b":{"a":[],"\\u0061":1}}]'])
def test_an_object_with_a_name_twice_is_refused_where_that_matters(data: bytes) -> None:
    """RFC 8259, 4: what it says depends on who reads it."""
    with pytest.raises(RepeatedName):
        parse(bytearray(data))
    with pytest.raises(RepeatedName):
        parse_large(bytearray(data), MANY)
    assert parse(bytearray(data), False) == read(data)
    assert parse_large(bytearray(data), MANY, False) == read(data)
