"""TLS as clients want it: what is trusted and shown, and what is wrong in one line."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from trivium.common.client_tls import ClientTls, TlsError, tls_error_in, tls_reason


def test_certificates_are_verified_unless_it_is_said_that_they_are_not() -> None:
    context = ClientTls().context("native")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    context = ClientTls(verify=False).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_the_authority_is_a_file_or_its_text_and_alone(tmp_path: Path) -> None:
    file = Authority(tmp_path).ca
    for ca in (str(file), file.read_text()):
        context = ClientTls(ca=ca).context()
        assert context.cert_store_stats()["x509_ca"] == 1
    assert ClientTls(ca=file.read_text()) != ClientTls(), "it is part of what is compared"
    assert "BEGIN" not in repr(ClientTls(ca=file.read_text()))


def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.pair("one"), authority.pair("other")
    missing = str(tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_text("")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: ClientTls(key="k"), "a client key needs its certificate"),
        (lambda: ClientTls(ca="c", verify=False), "nothing is verified"),
        (lambda: ClientTls(ca=missing).context(), f"{missing}: No such file or directory"),
        (lambda: ClientTls(ca=str(tmp_path / "empty.pem")).context(), "no certificate of an auth"),
        (lambda: ClientTls(ca="-----BEGIN nonsense").context(), "what is given has no certificate"),
        (
            lambda: ClientTls(certificate=missing).context(),
            f"{missing}: No such file or directory",
        ),
        (
            lambda: ClientTls(certificate=str(one.certificate), key=str(other.key)).context(),
            "not usable: TLS: key values mismatch",
        ),
    ]
    for attempt, text in cases:
        with pytest.raises(TlsError) as raised:
            attempt()
        assert text in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_error_of_tls_is_found_in_those_of_libraries() -> None:
    inner, theirs = ssl.SSLError(), RuntimeError("theirs")
    theirs.__context__ = OSError()
    theirs.__context__.__cause__ = inner
    assert tls_error_in(theirs) is inner
    assert tls_error_in(ValueError()) is None
    assert tls_reason(OSError("plain")) == "plain"
