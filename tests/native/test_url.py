"""trivium:// URLs."""

from __future__ import annotations

import pytest

from trivium.common.client_tls import ClientTls
from trivium_native.client.url import Target, make_target, parse_url


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
        ("triviums://h", Target("h", 7651, "/", None, "", ClientTls())),
        ("triviums://u:p@h:1/v", Target("h", 1, "v", "u", "p", ClientTls())),
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


def test_what_is_said_beside_the_url_holds() -> None:
    url = "triviums://u:p@h"
    tls = ClientTls(ca="file")
    assert make_target(url, tls).tls == tls
    assert make_target(url, None, "v", "q") == Target("h", 7651, "/", "v", "q", ClientTls())
    assert make_target(url, password="q").username == "u"
    assert make_target("trivium://h", password="token") == Target(
        "h", username="", password="token"
    )
    with pytest.raises(ValueError, match="triviums"):
        make_target("trivium://h", tls)
