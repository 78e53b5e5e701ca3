"""Scopes of tokens and API keys, and what they do to what a user may do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import PreconditionFailed
from trivium.security.identity import Identity
from trivium.security.permissions import (
    CONFIGURE,
    READ,
    WRITE,
    Access,
    AclLine,
    Permissions,
    grants_of,
)
from trivium.security.scopes import (
    MAX_SCOPE_BYTES,
    MAX_SCOPES,
    Glob,
    Scope,
    ScopePatterns,
    check_scopes,
    read_scopes,
    scopes_of,
)

WRONG = [
    "",
    "read",
    "read:",
    "read:v",
    "read:v/a/b/c",
    "publish:v/a",
    "READ:v/a",
    "read:" + "v" * MAX_SCOPE_BYTES + "/a",
]


@pytest.mark.parametrize("word", WRONG)
def test_what_is_no_scope(word: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        Scope(word)


@pytest.mark.parametrize(
    ("word", "vhost", "name", "is_for"),
    [
        ("read:*/*", "/", "q", True),
        ("read:*/*", "", "", True),
        ("read:%2F/q", "/", "q", True),
        ("read:%2F/q", "a", "q", False),
        ("read:%2f/a%2Fb", "/", "a/b", True),
        ("read:v*/q-*-x", "v1", "q--x", True),
        ("read:v*/q-*-x", "v1", "q-x", False),
        ("read:v/*q", "v", "a.q", True),
        ("read:v/a*a", "v", "a", False),
        ("read:v/a*b*b*c", "v", "abc", False),
        ("read:v/a*b*b", "v", "ab", False),
        ("read:v/a*b*b*c", "v", "axbxbxc", True),
        ("read:v/**", "v", "", True),
        ("read:v/*q", "v", "q.a", False),
        # What has a meaning in other patterns has none here
        ("read:v/q.", "v", "qx", False),
        ("read:v/%2A", "v", "q", False),
        ("read:v/%2A", "v", "*", True),
        ("read:v/(a|b)%5B", "v", "(a|b)[", True),
        ("read:v/a%0Ab", "v", "a\nb", True),
        ("read:v/*", "v", "a\nb\rc", True),
        ("read:v/%C3%A9", "v", "é", True),
        ("read:v/Q", "v", "q", False),
        # no name is not any name
        ("read:v/", "v", "q", False),
    ],
)
def test_scopes_are_rabbitmqs(word: str, vhost: str, name: str, is_for: bool) -> None:
    found = ScopePatterns([word], vhost)
    assert found.allow(READ, name) is is_for
    assert not found.allow(WRITE, name)
    assert found.allow_topic(READ, name, "any key") is is_for


@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=8))
def test_a_star_stands_for_any_characters(text: str, name: str) -> None:
    expected = re.fullmatch(".*".join(text.split("*")), name, re.DOTALL) is not None
    assert Glob(text).matches(name) is expected


def test_a_routing_key_belongs_to_its_own_name() -> None:
    found = ScopePatterns(["write:v/x/a.*", "write:v/y/b.*", "write:v/z/*"], "v")
    assert found.allow_topic(WRITE, "x", "a.1")
    assert not found.allow_topic(WRITE, "x", "b.1")
    assert not found.allow_topic(WRITE, "y", "a.1")
    assert found.allow_topic(WRITE, "z", "c")
    assert not found.allow_topic(READ, "x", "a.1")
    assert found.allow(WRITE, "x")


def test_everything_is_all_kinds_of_all_names_and_keys() -> None:
    words = [f"{kind}:*/*" for kind in (CONFIGURE, WRITE, READ)]
    assert ScopePatterns(words, "v").is_everything
    assert ScopePatterns([word + "/*" for word in words], "v").is_everything
    assert not ScopePatterns(words[:2], "v").is_everything
    assert not ScopePatterns([*words[:2], "read:*/*/a"], "v").is_everything
    assert not ScopePatterns([*words[:2], "read:w/*"], "v").is_everything
    assert ScopePatterns(["read:w/*"], "w").is_something
    assert not ScopePatterns(["read:w/*"], "v").is_something


def test_words_of_a_token_for_somebody_else_are_passed_over() -> None:
    words = [*WRONG, "openid", "read:v/q", "read:v/q", "tag:monitoring", "tag:", "admin"]
    assert read_scopes(words) == (("read:v/q",), frozenset(["monitoring"]))
    with pytest.raises(PreconditionFailed, match="scopes"):
        read_scopes(f"read:v/{n}" for n in range(MAX_SCOPES + 1))


def test_words_of_a_key_are_tags_or_scopes_but_not_misspelt_ones() -> None:
    words = ["monitoring", "tag:a:b", "write:v/q", "read:v/q"]
    assert check_scopes(words) == set(words)
    assert scopes_of(words) == (("read:v/q", "write:v/q"), frozenset(["monitoring", "a:b"]))
    assert scopes_of(["monitoring"]) == (None, frozenset(["monitoring"]))
    assert scopes_of([]) == ((), frozenset())
    for word in ("", "tag:", "t" * (MAX_SCOPE_BYTES + 1), "read:" + "v" * MAX_SCOPE_BYTES + "/a"):
        with pytest.raises(PreconditionFailed, match="bytes"):
            check_scopes([word])
    with pytest.raises(PreconditionFailed, match="leave them out"):
        check_scopes([])
    with pytest.raises(PreconditionFailed, match="at most"):
        check_scopes(str(n) for n in range(MAX_SCOPES + 1))


@pytest.mark.parametrize(
    "word",
    [
        "reed:v/q",
        "read:v",
        "read:v/a read:v/b",
        " read:v/a",
        "read:v/a b",
        "read:v/a\n",
        "read:v/a\x00",
        "read:v/a\x85",
        "read:v/a\u2003b",
        "read:v/a\udc80",
        "read:v/%",
        "read:v/%2",
        "read:v/%zz",
        "read:v/%ff",
        "read:v/q/%C3*",
        "read:/q",
        "read://q",
        "read:v/",
        "read:v//k",
    ],
)
def test_what_a_new_key_cannot_be_for_is_refused_by_the_forms_that_there_are(word: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"is no scope: .*VHOST/NAME\[/KEY\].*tag:NAME"):
        check_scopes(["read:v/q", word])


@pytest.mark.parametrize(
    "word", ["read:%2F/a%20b%00", "write:v/x/", "configure:*/*", "read:é/%C3%A9", "read:v/%2A%25"]
)
def test_whatever_a_name_has_can_be_written(word: str) -> None:
    assert check_scopes([word]) == {word}


# What they do


def permissions() -> Permissions:
    found = Permissions()
    granted = {"/": {"configure": "", "write": "^(amq.topic|w)", "read": ".*"}}
    topics = {"/": {"amq.topic": {"write": "^a", "read": ".*"}}}
    found.set_user(
        "ann", grants_of(granted, topics, ["topic deny a/secret", "topic read acl/#"], [])
    )
    return found


def narrowed(*words: str, user: str = "ann") -> Access:
    return permissions().access(Identity(user, scopes=words, is_narrowed=True), "/")


def alone(*words: str, user: str = "ann") -> Access:
    return permissions().access(Identity(user, scopes=words), "/")


def test_scopes_of_a_key_give_nothing_that_its_user_has_not() -> None:
    access = narrowed("configure:*/*", "write:*/*", "read:*/q*")
    assert not access.is_open
    assert access.may(WRITE, "w1")
    assert not access.may(WRITE, "x")
    assert not access.may(CONFIGURE, "q")
    assert access.may(READ, "q1")
    assert not access.may(READ, "r")
    assert access.may_topic(WRITE, "amq.topic", b"a.b")
    assert not access.may_topic(WRITE, "amq.topic", b"b")
    assert not access.may_topic(WRITE, "amq.topic", b"a.secret")
    # An ACL line grants it, the scopes do not.
    assert not access.may_topic(READ, "amq.topic", b"acl.x")
    assert not access.may_subscribe("amq.topic", b"acl/#", True)


def test_no_scope_of_a_key_permits_nothing() -> None:
    access = narrowed()
    assert not any(access.may(kind, name) for kind in (WRITE, READ) for name in ("w1", "q"))
    assert not access.may_subscribe("amq.topic", b"acl/#", True)


def test_scopes_of_a_key_narrow_topics() -> None:
    access = narrowed("write:%2F/amq.topic/a.b*", "read:%2F/amq.topic/acl.*")
    assert access.may_topic(WRITE, "amq.topic", b"a.b")
    assert not access.may_topic(WRITE, "amq.topic", b"a.c")
    assert access.may_topic(READ, "amq.topic", b"acl.x")
    assert access.may_subscribe("amq.topic", b"acl/#", True)
    assert not access.may_subscribe("amq.topic", b"#", True)
    access.require_binding("amq.topic", b"acl.*")
    for pattern in (b"#", b"b.*"):
        with pytest.raises(Exception, match="refused for user 'ann'"):
            access.require_binding("amq.topic", pattern)


def test_scopes_with_a_key_are_not_for_every_topic() -> None:
    narrowed("write:*/*").require_every_topic("w1")
    alone("write:%2F/x/*").require_every_topic("x")
    for access in (narrowed("write:*/w1/a"), alone("write:*/w1/a*"), alone("read:*/*")):
        with pytest.raises(Exception, match="refused for user 'ann'"):
            access.require_every_topic("w1")


def test_a_key_of_a_user_with_nothing_has_nothing() -> None:
    assert not narrowed("read:*/*", user="bob").may_enter
    assert not narrowed("read:other/*").may_enter
    assert narrowed("read:%2F/nothing").may_enter


def test_scopes_of_a_token_stand_in_for_what_its_user_is_granted() -> None:
    access = alone("configure:*/c", "read:%2F/amq.topic/x.*")
    assert access.may(CONFIGURE, "c")
    assert not access.may(WRITE, "w1")
    assert not access.may(READ, "q")
    assert access.may_topic(READ, "amq.topic", b"x.y")
    assert not access.may_topic(READ, "amq.topic", b"acl.x")
    assert alone("read:*/*", user="nobody").may(READ, "q")
    assert not alone().may_enter
    assert not alone("read:other/*").may_enter


def test_what_is_denied_stays_denied_whatever_a_token_says() -> None:
    everything = [f"{kind}:*/*" for kind in (CONFIGURE, WRITE, READ)]
    access = alone(*everything)
    assert not access.is_open
    assert not access.may_topic(READ, "amq.topic", b"a.secret")
    assert access.may_topic(READ, "amq.topic", b"a.public")
    assert alone(*everything, user="bob").is_open
    found = permissions()
    found.set_common([AclLine("pattern deny %u/#")])
    bob = found.access(Identity("bob", scopes=tuple(everything)), "/")
    assert not bob.may_topic(READ, "amq.topic", b"bob.x")


def test_identities_that_differ_in_scopes_share_no_decisions() -> None:
    found = permissions()
    identities = [
        Identity("ann"),
        Identity("ann", scopes=()),
        Identity("ann", scopes=("read:*/q",)),
        Identity("ann", scopes=("read:*/q",), is_narrowed=True),
    ]
    assert len({id(found.access(each, "/")) for each in identities}) == 4
    assert [found.access(each, "/").may(READ, "r") for each in identities] == [
        True,
        False,
        False,
        False,
    ]
