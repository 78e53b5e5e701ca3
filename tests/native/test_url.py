"""trivium:// URLs."""

from __future__ import annotations

import pytest

from trivium_native.client.url import Target, parse_url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("trivium://host", Target("host", 7650, "/", None, "")),
        ("trivium://host/", Target("host", 7650, "/", None, "")),
        ("trivium://host:1/v", Target("host", 1, "v", None, "")),
        ("trivium://u@host", Target("host", 7650, "/", "u", "")),
        ("trivium://u:p@[::1]:9/%2F", Target("::1", 9, "/", "u", "p")),
        ("trivium://a%40b:p%3Aq@h/v%2Fw", Target("h", 7650, "v/w", "a@b", "p:q")),
        ("trivium://u:@h", Target("h", 7650, "/", "u", "")),
    ],
)
def test_parts_of_a_url(url: str, target: Target) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "amqp://host",
        "trivium://",
        "trivium://:7650",
        "trivium://h:99999",
        "trivium://h?x=1",
        "trivium://h#x",
    ],
)
def test_what_is_not_a_url(url: str) -> None:
    with pytest.raises(ValueError):
        parse_url(url)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(parse_url("trivium://u:secret@h"))
