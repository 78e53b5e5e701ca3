"""JSON Web Tokens: which are taken, and what they give."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.authentication import Pool
from trivium.config import Config, JwtConfig
from trivium.errors import ConfigError
from trivium.runtime.authentication import Authentication
from trivium.security import tokens as module
from trivium.security.attempts import Attempt, Login
from trivium.security.web import WebAnswer, WebRequest

NOW = 1_800_000_000
SECRET = b"a secret that is thirty-two bytes"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PRIVATE: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED, "HS256": SECRET}


def pem(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


FILES = {"RS256": pem(RSA), "ES256": pem(EC), "EdDSA": pem(ED), "HS256": SECRET + b"\n"}


def row(key: Any, number: str = "", **more: str) -> dict[str, str]:
    """A key of a set."""
    kind = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm: Any = next((a for k, a in kind.items() if isinstance(key, k)), OKPAlgorithm)
    found: dict[str, str] = json.loads(algorithm.to_jwk(key.public_key()))
    return found | ({"kid": number} if number else {}) | more


def key_set(*rows: dict[str, str]) -> bytes:
    return json.dumps({"keys": rows}).encode()


def sign(algorithm: str = "RS256", key: Any = None, kid: str | None = None, **claims: Any) -> str:
    claims = {"sub": "ann", "exp": NOW + 60} | claims
    claims = {name: value for name, value in claims.items() if value is not None}
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims, key or PRIVATE[algorithm], algorithm, headers)


class Tokens:
    """A broker that takes tokens, and the server of its key set."""

    def __init__(self, config: JwtConfig) -> None:
        self.now_ms = NOW * 1000
        self.requests: list[WebRequest] = []
        self.answers: list[Callable[[WebAnswer | None], None]] = []
        self.pool = Pool()
        found = Authentication(Config(jwt=config), self.pool, self.fetch, now_ms=self.clock)
        self.authenticator = found.authenticator

    def clock(self) -> int:
        return self.now_ms

    def fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        self.requests.append(request)
        self.answers.append(done)

    def start(self, token: str | bytes, username: str | None = "") -> list[Login | None]:
        answers: list[Login | None] = []
        password = token.encode() if isinstance(token, str) else token
        attempt = Attempt(username=username, password=password)
        self.authenticator.authenticate(attempt, answers.append)
        self.pool.run()
        return answers

    def login(self, token: str | bytes, username: str | None = "") -> Login | None:
        (answer,) = self.start(token, username)
        return answer


def configured(tmp_path: Path, algorithm: str = "RS256", **keys: Any) -> Tokens:
    file = tmp_path / "key"
    file.write_bytes(FILES[algorithm])
    return Tokens(JwtConfig(key_file=str(file), **keys))


@pytest.mark.parametrize("algorithm", FILES)
def test_a_token_that_the_key_has_signed_is_taken(tmp_path: Path, algorithm: str) -> None:
    tokens = configured(tmp_path, algorithm)
    for username in ("", "ann", "somebody else", None):
        login = tokens.login(sign(algorithm), username)
        assert login is not None
        assert login.identity.name == "ann"
        assert login.identity.tags == frozenset()
        assert login.expires_ms == (NOW + 60 + 30) * 1000


@pytest.mark.parametrize("algorithm", FILES)
def test_a_token_that_another_key_has_signed_is_refused(tmp_path: Path, algorithm: str) -> None:
    others = {
        "RS256": OTHER_RSA,
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        "HS256": b"another secret of thirty-two byte",
    }
    tokens = configured(tmp_path, algorithm)
    assert tokens.login(sign(algorithm, others[algorithm])) is None
    for other in FILES:
        if other != algorithm:
            assert tokens.login(sign(other)) is None
    head, body, signature = sign(algorithm).split(".")
    forged = base64.urlsafe_b64encode(json.dumps({"sub": "root", "exp": NOW + 60}).encode())
    assert tokens.login(f"{head}.{forged.decode().rstrip('=')}.{signature}") is None
    assert tokens.login(f"{head}.{body}.") is None


def encode(part: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


CLAIMS = {"sub": "ann", "exp": NOW + 60}


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 5, ["none"]])
def test_a_token_without_a_signature_is_refused(tmp_path: Path, name: Any) -> None:
    tokens = configured(tmp_path)
    for signature in (b"", b"AA"):
        token = b".".join((encode({"typ": "JWT", "alg": name}), encode(CLAIMS), signature))
        assert tokens.login(token) is None
    assert tokens.login(b".".join((encode({"typ": "JWT"}), encode(CLAIMS), b""))) is None


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_the_public_part_of_a_key_is_no_secret_of_an_hmac(tmp_path: Path, algorithm: str) -> None:
    tokens = configured(tmp_path, algorithm)
    for secret in (FILES[algorithm], FILES[algorithm].strip()):
        head = encode({"typ": "JWT", "alg": "HS256"}) + b"." + encode(CLAIMS)
        signature = hmac.digest(secret, head, hashlib.sha256)
        token = head + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
        assert tokens.login(token) is None


def test_an_algorithm_that_is_not_named_is_refused(tmp_path: Path) -> None:
    tokens = configured(tmp_path, algorithms=("ES256",))
    assert tokens.login(sign()) is None
    assert configured(tmp_path).login(sign("RS512", RSA)) is None


@pytest.mark.parametrize(
    ("claims", "is_taken"),
    [
        ({"exp": NOW - 29}, True),
        ({"exp": NOW - 30}, False),
        ({"exp": None}, False),
        ({"exp": float(NOW + 60)}, True),
        ({"exp": 1 << 62}, False),
        ({"nbf": NOW + 30}, True),
        ({"nbf": NOW + 31}, False),
        ({"sub": None}, False),
        ({"sub": ""}, False),
        ({"sub": "x" * 256}, False),
        ({"sub": "a\nb"}, False),
        ({"sub": "a+#/%u"}, True),
        ({"aud": "me"}, True),
    ],
)
def test_which_claims_a_token_has(tmp_path: Path, claims: dict[str, Any], is_taken: bool) -> None:
    assert (configured(tmp_path).login(sign(**claims)) is not None) == is_taken


@pytest.mark.parametrize("expires", ["soon", True, [1], {"a": 1}])
def test_an_expiry_that_is_no_time_is_refused(tmp_path: Path, expires: Any) -> None:
    token = jwt.PyJWS().encode(json.dumps({"sub": "ann", "exp": expires}).encode(), RSA, "RS256")
    assert configured(tmp_path).login(token) is None


@pytest.mark.parametrize(
    ("claims", "is_taken"),
    [
        ({"aud": "b", "iss": "us"}, True),
        ({"aud": ["x", "a"], "iss": "us"}, True),
        ({"aud": "c", "iss": "us"}, False),
        ({"iss": "us"}, False),
        ({"aud": "a", "iss": "them"}, False),
        ({"aud": "a"}, False),
    ],
)
def test_for_whom_a_token_is_and_who_issued_it(
    tmp_path: Path, claims: dict[str, Any], is_taken: bool
) -> None:
    tokens = configured(tmp_path, audience=("a", "b"), issuer="us")
    assert (tokens.login(sign(**claims)) is not None) == is_taken


@pytest.mark.parametrize(
    ("value", "tags"),
    [
        ("trivium:administrator openid trivium:a", {"administrator", "a"}),
        (["trivium:administrator", 5, "x"], {"administrator"}),
        ("administrator", set()),
        ({"trivium:administrator": 1}, set()),
        (None, set()),
        ("trivium:", set()),
    ],
)
def test_a_claim_gives_tags(tmp_path: Path, value: Any, tags: set[str]) -> None:
    tokens = configured(tmp_path, tags_claim="scope", tag_prefix="trivium:")
    login = tokens.login(sign(scope=value))
    assert login is not None
    assert login.identity.tags == tags


@pytest.mark.parametrize(
    ("value", "scopes", "tags"),
    [
        ("openid me.read:*/q me.tag:monitoring read:*/all", ("read:*/q",), {"monitoring"}),
        (["me.read:*/q", 5, "me.", "me.write:v/x/k"], ("read:*/q", "write:v/x/k"), set()),
        ({"me.read:*/q": 1}, (), set()),
        (None, (), set()),
    ],
)
def test_a_claim_gives_scopes(
    tmp_path: Path, value: Any, scopes: tuple[str, ...], tags: set[str]
) -> None:
    tokens = configured(tmp_path, scopes_claim="scope", scope_prefix="me.")
    login = tokens.login(sign(scope=value))
    assert login is not None
    assert (login.identity.scopes, login.identity.is_narrowed) == (scopes, False)
    assert login.identity.tags == tags


@pytest.mark.parametrize(
    ("value", "scopes", "tags"),
    [
        ("openid admin", ("read:*/*",), {"administrator"}),
        (["api://x:Read.All", "me.write:v/q"], ("read:*/a", "read:*/b", "write:v/q"), set()),
        # An alias stands for scopes, not for aliases; and only as a whole word.
        ("twice me.admin Admin administrator", ("configure:*/*",), {"admin"}),
        ("me.read:*/own", ("read:*/*", "read:*/own"), set()),
        (["admin"] * 500, ("read:*/*",), {"administrator"}),
    ],
)
def test_a_scope_of_the_identity_provider_stands_for_others(
    tmp_path: Path, value: Any, scopes: tuple[str, ...], tags: set[str]
) -> None:
    aliases = {
        "admin": "me.tag:administrator me.read:*/*",
        "api://x:Read.All": ["me.read:*/a", "me.read:*/b"],
        "twice": "me.configure:*/* me.tag:admin",
        "me.read:*/own": "me.read:*/*",
    }
    tokens = configured(tmp_path, scopes_claim="scope", scope_prefix="me.", scope_aliases=aliases)
    login = tokens.login(sign(scope=value))
    assert login is not None
    assert login.identity.scopes == scopes
    assert login.identity.tags == tags


def test_aliases_do_not_pass_the_bound_of_scopes(tmp_path: Path) -> None:
    aliases = {f"a{n}": [f"read:v/{n}.{m}" for m in range(129)] for n in range(2)}
    tokens = configured(tmp_path, scopes_claim="scope", scope_aliases=aliases)
    assert tokens.login(sign(scope="a0")) is not None
    assert tokens.login(sign(scope="a0 a1")) is None


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"a": 1}, "'a' is not scopes, as a text or a list"),
        ({"a": [1]}, "'a' is not scopes, as a text or a list"),
        ({"a": "read:*/*"}, "'read:\\*/\\*' does not begin with 'me.'"),
        ({"a": "me.raed:*/*"}, "'me.raed:\\*/\\*' is neither a scope nor a tag"),
        ({"a": "me.tag:"}, "'me.tag:' is neither a scope nor a tag"),
        ({"a": ["me.read:v/a me.read:v/b"]}, "'me.read:v/a me.read:v/b' is neither a scope nor"),
    ],
)
def test_aliases_that_would_mean_nothing_are_refused(
    tmp_path: Path, aliases: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"\[jwt\] scope_aliases: {message}"):
        configured(tmp_path, scopes_claim="scope", scope_prefix="me.", scope_aliases=aliases)


def test_aliases_need_a_claim(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[jwt\] scope_aliases needs scopes_claim"):
        configured(tmp_path, scope_aliases={"a": "read:*/*"})


def test_scopes_count_where_they_are_asked_for(tmp_path: Path) -> None:
    login = configured(tmp_path).login(sign(scope="read:*/q tag:administrator"))
    assert login is not None
    assert login.identity.scopes is None
    assert login.identity.tags == set()


def test_a_token_has_a_bound_of_scopes_and_of_tags(tmp_path: Path) -> None:
    tokens = configured(tmp_path, scopes_claim="scope")
    assert tokens.login(sign(scope=[f"read:v/{n}" for n in range(256)])) is not None
    assert tokens.login(sign(scope=[f"read:v/{n}" for n in range(257)])) is None
    assert tokens.login(sign(scope=[f"tag:{n}" for n in range(33)])) is None
    # A claim may name groups that are no tags.
    login = configured(tmp_path, tags_claim="groups").login(
        sign(groups=[f"{n}" for n in range(33)])
    )
    assert login is not None
    assert login.identity.tags == {f"{n}" for n in range(32)}


@pytest.mark.parametrize("value", ["farm", 5, ["farm"]])
def test_a_claim_names_the_virtual_host(tmp_path: Path, value: Any) -> None:
    login = configured(tmp_path, vhost_claim="vh").login(sign(vh=value))
    if isinstance(value, str):
        assert login is not None
        assert login.virtual_host == value
    else:
        # Not the one that it would have without the claim.
        assert login is None
    unasked = configured(tmp_path).login(sign(vh=value))
    assert unasked is not None
    assert unasked.virtual_host == ""


def test_the_name_may_be_in_another_claim(tmp_path: Path) -> None:
    login = configured(tmp_path, user_claim="name").login(sign(name="bob"))
    assert login is not None
    assert login.identity.name == "bob"


def test_what_has_not_the_form_of_a_token_is_a_password(tmp_path: Path) -> None:
    tokens = configured(tmp_path)
    assert tokens.login("guest", "guest") is None, "not from this machine"
    attempt = Attempt(username="guest", password=b"guest", is_loopback=True)
    answers: list[Login | None] = []
    tokens.authenticator.authenticate(attempt, answers.append)
    assert answers[0] is not None


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    tokens = configured(tmp_path)
    new = tmp_path / "new"
    new.write_bytes(pem(OTHER_RSA))
    new.rename(tmp_path / "key")
    tokens.authenticator.look(tokens.now_ms)
    tokens.pool.run()
    assert tokens.login(sign()) is None
    assert tokens.login(sign(key=OTHER_RSA)) is not None


def weak_rsa() -> bytes:
    return pem(rsa.generate_private_key(65537, 1024))


@pytest.mark.parametrize(
    "content",
    [
        b"too short",
        b"-----BEGIN PUBLIC KEY-----\nc2VjcmV0\n-----END PUBLIC KEY-----\n",
        RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        pem(ec.generate_private_key(ec.SECP384R1())),
        weak_rsa(),
    ],
)
def test_a_key_that_cannot_be_used_ends_the_start_and_is_not_quoted(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Tokens(JwtConfig(key_file=str(file)))
    assert "c2VjcmV0" not in str(raised.value)
    assert content.decode() not in str(raised.value)


# Key sets


def test_the_key_of_a_set_is_found_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "set"
    file.write_bytes(key_set(row(RSA, "1"), row(OTHER_RSA, "2"), row(EC, "3"), row(ED, "4")))
    tokens = Tokens(JwtConfig(jwks_file=str(file)))
    assert tokens.login(sign(kid="1")) is not None
    assert tokens.login(sign(key=OTHER_RSA, kid="2")) is not None
    assert tokens.login(sign(kid="2")) is None
    assert tokens.login(sign(kid="9")) is None
    assert tokens.login(sign()) is not None, "without a number each may be tried"
    assert tokens.login(sign("ES256", kid="3")) is not None
    assert tokens.login(sign("EdDSA", kid="4")) is not None
    assert tokens.login(sign("EdDSA", kid="3")) is None


def test_keys_of_a_set_for_other_uses_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "set"
    file.write_bytes(key_set(row(RSA, use="enc"), row(OTHER_RSA, alg="RS512"), row(EC, use="sig")))
    tokens = Tokens(JwtConfig(jwks_file=str(file)))
    assert tokens.login(sign()) is None
    assert tokens.login(sign(key=OTHER_RSA)) is None
    assert tokens.login(sign("ES256")) is not None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": [5]}', key_set()]
)
def test_a_key_set_that_is_none_ends_the_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "set"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        Tokens(JwtConfig(jwks_file=str(file)))


URL = JwtConfig(jwks_url="http://keys.example/set", refresh_seconds=300)


def test_the_key_set_of_a_url_is_fetched_at_the_first_look_and_again_in_time() -> None:
    tokens = Tokens(URL)
    tokens.authenticator.look(tokens.now_ms)
    assert [request.url for request in tokens.requests] == ["http://keys.example/set"]
    tokens.authenticator.look(tokens.now_ms)
    tokens.answers.pop()(WebAnswer(200, key_set(row(RSA, "1"))))
    assert tokens.login(sign(kid="1")) is not None
    for seconds, fetches in ((299, 1), (300, 2)):
        tokens.now_ms = (NOW + seconds) * 1000
        tokens.authenticator.look(tokens.now_ms)
        assert len(tokens.requests) == fetches


def test_a_token_waits_for_a_key_that_is_new() -> None:
    tokens = Tokens(URL)
    tokens.authenticator.look(tokens.now_ms)
    tokens.answers.pop()(WebAnswer(200, key_set(row(RSA, "1"))))
    assert tokens.start(sign(key=OTHER_RSA, kid="2")) == [None], "it was just fetched"
    tokens.now_ms += 10_000
    first = tokens.start(sign(key=OTHER_RSA, kid="2"))
    second = tokens.start(sign(kid="3"))
    assert first == second == []
    assert len(tokens.requests) == 2
    tokens.answers.pop()(WebAnswer(200, key_set(row(RSA, "1"), row(OTHER_RSA, "2"))))
    assert first[0] is not None
    assert second == [None]
    assert len(tokens.requests) == 2


@pytest.mark.parametrize(
    "answer", [None, WebAnswer(500, b""), WebAnswer(200, b"{}"), WebAnswer(404, key_set(row(EC)))]
)
def test_keys_hold_while_the_set_cannot_be_fetched(answer: WebAnswer | None) -> None:
    tokens = Tokens(URL)
    tokens.authenticator.look(tokens.now_ms)
    tokens.answers.pop()(WebAnswer(200, key_set(row(RSA, "1"))))
    tokens.now_ms += 300_000
    tokens.authenticator.look(tokens.now_ms)
    tokens.answers.pop()(answer)
    assert tokens.login(sign(kid="1", exp=NOW + 900)) is not None


def test_a_set_that_everybody_can_read_has_no_secrets() -> None:
    secret = base64.urlsafe_b64encode(SECRET).decode().rstrip("=")
    tokens = Tokens(URL)
    tokens.authenticator.look(tokens.now_ms)
    tokens.answers.pop()(WebAnswer(200, key_set({"kty": "oct", "k": secret}, row(EC))))
    assert tokens.login(sign("HS256")) is None
    assert tokens.login(sign("ES256")) is not None


def test_so_many_tokens_wait_for_a_key_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    tokens = Tokens(URL)
    tokens.authenticator.look(tokens.now_ms)
    waiting = [tokens.start(sign(kid="1")) for _ in range(2)]
    assert tokens.start(sign(kid="1")) == [None]
    tokens.answers.pop()(WebAnswer(200, key_set(row(RSA, "1"))))
    assert [found[0] is not None for found in waiting] == [True, True]


def test_rfc_7515_4_1_11_what_must_be_understood_and_is_not_refuses(tmp_path: Path) -> None:
    claims = {"sub": "ann", "exp": NOW + 60}
    for headers, is_taken in (
        ({"x": 1}, True),
        ({"x": 1, "crit": ["x"]}, False),
        ({"crit": []}, False),
    ):
        token = jwt.encode(claims, RSA, "RS256", headers)
        assert (configured(tmp_path).login(token) is not None) is is_taken
