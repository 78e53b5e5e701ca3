"""The commands that are clients, by TLS, and with credentials that are not in their arguments."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.commands import run, serve
from trivium.config import EVERYTHING

SCHEMES = {"mqtt": "mqtt", "amqp": "amqp", "trivium": "native"}


@dataclass
class Site:
    """A broker of which nobody is a client without credentials, and its files."""

    places: dict[str, str]
    ca: str
    certificate: str
    key: str

    def url(self, scheme: str, *, is_tls: bool = True, to_tls: bool = True, user: str = "") -> str:
        place = self.places[SCHEMES[scheme] + "s" * to_tls]
        return f"{scheme}{'s' * is_tls}://{user}{place}"

    def pub(
        self, url: str, *options: str, trusts: bool = True, password: str = ""
    ) -> subprocess.CompletedProcess[str]:
        ca = ["--tls-ca", self.ca] if trusts else []
        done = run("pub", url, "a", "b", *ca, *options, TRIVIUM_PASSWORD=password)
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    authority = Authority(folder)
    server, ann = authority.pair("server", "127.0.0.1"), authority.pair("ann")
    places = [word for name in SCHEMES.values() for word in (f"--{name}", "0", f"--{name}s", "0")]
    files = ["--tls-certificate", str(server.certificate), "--tls-key", str(server.key)]
    with serve(
        *("--memory", "--http", "off", *places, *files, "--tls-ca", str(authority.ca)),
        TRIVIUM_AUTH__ANONYMOUS="never",
        TRIVIUM_USERS__ann__PASSWORD="secret",
        TRIVIUM_USERS__ann__PERMISSIONS=json.dumps(EVERYTHING),
    ) as (_, line):
        found = dict(word.split("=", 1) for word in line.split()[2:])
        yield Site(found, str(authority.ca), str(ann.certificate), str(ann.key))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_password_may_stand_elsewhere_than_in_the_arguments(
    site: Site, scheme: str, tmp_path: Path
) -> None:
    url = site.url(scheme, user="ann@")
    file = tmp_path / "password"
    file.write_text("secret\n")
    assert site.pub(url, "--password-file", str(file)).returncode == 0
    assert site.pub(url, password="secret").returncode == 0
    refused = site.pub(url, password="wrong")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("scheme", ["amqp", "trivium"])
def test_a_certificate_says_who_the_client_is(site: Site, scheme: str) -> None:
    pair = ["--tls-certificate", site.certificate, "--tls-key", site.key]
    done = site.pub(site.url(scheme), *pair)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_broker_that_is_not_verified_gets_nothing(site: Site, scheme: str) -> None:
    refused = site.pub(site.url(scheme, user="ann:secret@"), trusts=False)
    assert refused.returncode == 1
    assert "the certificate does not verify: " in refused.stderr
    assert refused.stderr.count("\n") == 1
    done = site.pub(site.url(scheme, user="ann:secret@"), "--tls-insecure", trusts=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("scheme", "text"), [("amqp", "the URL needs an s"), ("trivium", "begins with triviums://")]
)
def test_who_speaks_plainly_to_tls_is_told_so(site: Site, scheme: str, text: str) -> None:
    refused = site.pub(site.url(scheme, is_tls=False), trusts=False)
    assert refused.returncode == 1
    assert text in refused.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_speaks_tls_to_a_plain_port_is_told_so(site: Site, scheme: str) -> None:
    refused = site.pub(site.url(scheme, to_tls=False))
    assert refused.returncode == 1
    assert "TLS" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("trivium://h", ["--tls-insecure"], "options of TLS need a URL that begins with trivium"),
        ("triviums://h", ["--tls-key", "k"], "a client key needs its certificate"),
        ("triviums://h", ["--tls-ca", "/none"], "/none: No such file or directory"),
        ("trivium://u@h", ["--password-file", "/none"], "/none: No such file or directory"),
        ("trivium://u@h", ["--password-file", "/dev/null"], "/dev/null is empty"),
        ("trivium://u:p@h", ["--password-file", "f"], "the URL has a password"),
    ],
)
def test_options_that_do_not_fit_are_one_line_and_exit_2(
    url: str, options: list[str], text: str
) -> None:
    refused = run("pub", url, "a", "b", *options)
    assert refused.returncode == 2
    assert text in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_password_in_a_url_that_is_wrong_is_not_shown() -> None:
    refused = run("pub", "nothing://ann:secret@h", "a", "b")
    assert refused.returncode == 2
    assert "secret" not in refused.stderr
