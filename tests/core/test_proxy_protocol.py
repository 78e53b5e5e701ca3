"""The PROXY protocol: headers by bytes, and who may send them over real sockets."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.runtime.proxy_protocol import (
    UNKNOWN,
    V1_BYTES,
    V2_BEGINS,
    V2_BYTES,
    HeaderError,
    HeaderReader,
)

BEHIND = b"\x10\x0c\x00\x04MQTT"


def v2(
    family: int, addresses: bytes, fields: bytes = b"", command: int = 0x21, size: int | None = None
) -> bytes:
    body = addresses + fields
    length = len(body) if size is None else size
    return V2_BEGINS + bytes((command, family)) + length.to_bytes(2, "big") + body


INET = (
    ipaddress.IPv4Address("192.0.2.1").packed
    + ipaddress.IPv4Address("192.0.2.9").packed
    + bytes.fromhex("dc04 075b")
)
INET6 = (
    ipaddress.IPv6Address("2001:db8::1").packed
    + ipaddress.IPv6Address("2001:db8::9").packed
    + bytes.fromhex("dc04 075b")
)
MAPPED = ipaddress.IPv6Address("::ffff:192.0.2.1").packed * 2 + bytes.fromhex("dc04 075b")
#: PP2_TYPE_SSL with a common name in it, and PP2_TYPE_NOOP.
FIELDS = bytes.fromhex("20 000d 07 00000000 22 0005") + b"alice" + bytes.fromhex("04 0001 00")

RIGHT = [
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 1883\r\n", ("192.0.2.1", 56324), id="1-4"),
    pytest.param(
        b"PROXY TCP6 2001:db8::1 2001:db8::9 56324 1883\r\n", ("2001:db8::1", 56324), id="1-6"
    ),
    pytest.param(b"PROXY UNKNOWN\r\n", UNKNOWN, id="1-unknown"),
    pytest.param(b"PROXY UNKNOWN ffff:f.f 65535\r\n", UNKNOWN, id="1-unknown-with-more"),
    pytest.param(v2(0x11, INET), ("192.0.2.1", 56324), id="2-4"),
    pytest.param(v2(0x11, INET, FIELDS), ("192.0.2.1", 56324), id="2-4-with-fields"),
    pytest.param(v2(0x21, INET6), ("2001:db8::1", 56324), id="2-6"),
    pytest.param(v2(0x21, MAPPED), ("192.0.2.1", 56324), id="2-6-mapped"),
    pytest.param(v2(0x31, bytes(216)), UNKNOWN, id="2-unix"),
    pytest.param(v2(0x00, b""), UNKNOWN, id="2-unspecified"),
    pytest.param(v2(0x00, b"", command=0x20), None, id="2-local"),
    pytest.param(v2(0x11, b"junk", command=0x20), None, id="2-local-with-junk"),
]

WRONG = [
    pytest.param(b"", BEHIND, id="none"),
    pytest.param(b"", b"\x16\x03\x01\x02\x00", id="tls"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324\r\n", b"", id="1-no-port"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 1883 x\r\n", b"", id="1-more"),
    pytest.param(b"PROXY TCP4  192.0.2.1 192.0.2.9 1 2\r\n", b"", id="1-spaces"),
    pytest.param(b"PROXY TCP4 2001:db8::1 2001:db8::9 1 2\r\n", b"", id="1-other-family"),
    pytest.param(b"PROXY TCP4 192.0.2.01 192.0.2.9 1 2\r\n", b"", id="1-leading-zero"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 01 2\r\n", b"", id="1-port-leading-zero"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 65536 2\r\n", b"", id="1-port-too-large"),
    pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.9 -1 2\r\n", b"", id="1-port-negative"),
    pytest.param("PROXY TCP4 192.0.2.1 192.0.2.9 \u0661 2\r\n".encode(), b"", id="1-digit"),
    pytest.param(b"PROXY UDP4 192.0.2.1 192.0.2.9 1 2\r\n", b"", id="1-family"),
    pytest.param(b"PROXY \r\n", b"", id="1-empty"),
    pytest.param(b"proxy UNKNOWN\r\n", b"", id="1-lower-case"),
    pytest.param(b"PROXY UNKNOWN " + b"x" * V1_BYTES, b"", id="1-too-long"),
    pytest.param(v2(0x11, INET, command=0x11), b"", id="2-version"),
    pytest.param(v2(0x11, INET, command=0x22), b"", id="2-command"),
    pytest.param(v2(0x41, INET), b"", id="2-family"),
    pytest.param(v2(0x13, INET), b"", id="2-transport"),
    pytest.param(v2(0x11, INET[:11]), b"", id="2-cut-off"),
    pytest.param(v2(0x11, INET, b"\x04\x00"), b"", id="2-field-cut-off"),
    pytest.param(v2(0x11, INET, b"\x04\x00\x02x"), b"", id="2-field-too-long"),
    pytest.param(v2(0x11, INET, size=V2_BYTES + 1), b"", id="2-too-long"),
]


@pytest.mark.parametrize(("header", "source"), RIGHT)
def test_header_is_read_and_nothing_behind_it(
    header: bytes, source: tuple[str, int] | None
) -> None:
    reader = HeaderReader()
    assert reader.take(header + BEHIND) == len(header)
    assert (reader.is_done, reader.source) == (True, source)


@pytest.mark.parametrize(("header", "source"), RIGHT)
def test_header_is_read_at_each_cut(header: bytes, source: tuple[str, int] | None) -> None:
    for cut in range(1, len(header)):
        reader = HeaderReader()
        assert reader.take(header[:cut]) == cut
        assert not reader.is_done
        assert reader.take(header[cut:] + BEHIND) == len(header) - cut
        assert (reader.is_done, reader.source) == (True, source)


@pytest.mark.parametrize(("header", "rest"), WRONG)
def test_wrong_header_is_refused(header: bytes, rest: bytes) -> None:
    with pytest.raises(HeaderError):
        HeaderReader().take(header + rest)


@pytest.mark.parametrize(("header", "rest"), WRONG)
def test_wrong_header_is_refused_byte_by_byte(header: bytes, rest: bytes) -> None:
    reader = HeaderReader()

    def feed() -> None:
        for byte in header + rest:
            reader.take(bytes((byte,)))
            assert not reader.is_done

    with pytest.raises(HeaderError):
        feed()


@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(lambda data: b"PROXY " + data),
        st.binary(max_size=300).map(lambda data: V2_BEGINS + data),
        st.text(alphabet="0123456789.: TCP46UNKOW", max_size=90).map(
            lambda text: f"PROXY {text}\r\n".encode()
        ),
    )
)
def test_only_the_error_of_a_header_escapes(data: bytes) -> None:
    reader = HeaderReader()
    try:
        taken = reader.take(data)
    except HeaderError:
        return
    assert taken == len(data) or reader.is_done
