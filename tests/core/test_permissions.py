"""What an identity may do: names, topics, ACL lines, roles."""

from pathlib import Path
from typing import Any

import pytest

from trivium.common.events import Events
from trivium.config import AuthConfig, Config, RoleConfig, UserConfig
from trivium.errors import AccessRefused, ConfigError, PreconditionFailed
from trivium.messages.topics import key_of
from trivium.runtime.grants import configure_permissions
from trivium.security.granted import Granted
from trivium.security.identity import NOBODY, Identity
from trivium.security.permissions import (
    CONFIGURE,
    READ,
    WRITE,
    Access,
    AclLine,
    Grants,
    Permissions,
    grants_of,
)
from trivium.storage.memory import MemoryStorage

ANN = Identity("ann")
ANONYMOUS = Identity("", is_anonymous=True)


def access_with(
    acl: list[str] | None = None,
    topics: dict[str, dict[str, str]] | None = None,
    names: tuple[str, str, str] | None = None,
    user: str = "ann",
    client_id: str = "",
) -> Access:
    permissions = Permissions()
    granted = (
        {} if names is None else {"/": dict(zip((CONFIGURE, WRITE, READ), names, strict=True))}
    )
    permissions.set_user(user, grants_of(granted, {"/": topics or {}}, acl or [], []))
    return permissions.access(Identity(user), "/", client_id)


def test_who_has_no_grants_may_do_nothing() -> None:
    permissions = Permissions()
    for identity in (ANN, ANONYMOUS, NOBODY):
        access = permissions.access(identity, "/")
        assert not access.may_enter
        assert not any(access.may(kind, name) for kind in (CONFIGURE, WRITE, READ) for name in "aq")
        assert not access.may_topic(WRITE, "amq.topic", b"a")
        assert not access.may_subscribe("amq.topic", b"#", True)


def test_names_are_matched_by_kind_and_an_empty_pattern_matches_nothing() -> None:
    access = access_with(names=("", "^out", "in$"))
    assert access.may(WRITE, "outer")
    assert access.may(READ, "main")
    assert not access.may(READ, "outer")
    assert not access.may(CONFIGURE, "outer")
    assert not access.may(CONFIGURE, "")


def test_the_default_exchange_is_called_amq_default() -> None:
    assert access_with(names=("", r"^amq\.default$", "")).may(WRITE, "")
    assert not access_with(names=(r"", r"^$", "")).may(WRITE, "")


def test_permissions_hold_in_their_virtual_host_alone() -> None:
    permissions = Permissions()
    permissions.set_user("ann", grants_of({"one": {"read": ".*"}}, {}, [], []))
    assert permissions.access(ANN, "one").may(READ, "q")
    assert not permissions.access(ANN, "two").may_enter
    permissions.set_user("ann", grants_of({"*": {"read": ".*"}}, {}, [], []))
    assert permissions.access(ANN, "two").may(READ, "q")


def test_a_topic_permission_narrows_its_exchange_and_no_other() -> None:
    topics = {"amq.topic": {"write": r"^a\.", "read": r"^b\."}}
    access = access_with(names=(".*", ".*", ".*"), topics=topics)
    assert access.may_topic(WRITE, "amq.topic", b"a.x")
    assert not access.may_topic(WRITE, "amq.topic", b"b.x")
    assert access.may_topic(READ, "amq.topic", b"b.x")
    assert access.may_topic(WRITE, "other", b"b.x")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        *((each, each) for each in ("a+", "a#", "%u", "%c", "[x]", "a|b", "{vhost}", "%2B")),
        *((".", "/"), ("a.*", "a/*"), ("ann.b", "ann/b"), ("ann/b", "ann%2Fb")),
    ],
)
def test_what_stands_for_a_variable_matches_itself_alone(value: str, word: str) -> None:
    others = ["x", "aa", "b", "ann", "ann.b", ".", "a/b.", "", "[x", "|", "ann.", "a.*", "a.x"]
    topics = {"amq.topic": {"write": "^{username}$", "read": "^{client_id}$"}}
    access = access_with(names=(".*",) * 3, topics=topics, user=value, client_id=value)
    for kind in (WRITE, READ):
        assert access.may_topic(kind, "amq.topic", word.encode())
        for other in others:
            assert not access.may_topic(kind, "amq.topic", other.encode())


OWN_TOPICS = [
    pytest.param({"topics": {"amq.topic": {"write": each, "read": each}}}, id=each)
    for each in (r"^u\.{username}\.", r"^u\.{client_id}\.")
] + [pytest.param({"acl": [f"pattern readwrite u/{each}/#"]}, id=each) for each in ("%u", "%c")]


@pytest.mark.parametrize("grants", OWN_TOPICS)
@pytest.mark.parametrize("name", ["ann", "ann.b", "ann.b.c", "a*n", ".", "é.x"])
def test_a_name_has_its_own_mqtt_topics_and_nobody_elses(grants: dict[str, Any], name: str) -> None:
    names = None if "acl" in grants else (".*",) * 3
    access = access_with(names=names, user=name, client_id=name, **grants)
    for owner in ("ann", "ann.b", "ann/b", "ann/b/c", "x", name):
        is_own = f"{owner}/".startswith(f"{name}/")
        assert access.may_topic(WRITE, "amq.topic", key_of(f"u/{owner}/x".encode())) == is_own
        assert access.may_topic(READ, "amq.topic", key_of(f"u/{owner}/x".encode())) == is_own
        assert access.may_subscribe("amq.topic", f"u/{owner}/#".encode(), True) == is_own


@pytest.mark.parametrize("name", ["ann/b", "ann/b/c", "/", "+", "#", "*"])
@pytest.mark.parametrize("grants", OWN_TOPICS)
def test_a_name_of_several_levels_or_a_wildcard_gives_none_of_theirs(
    grants: dict[str, Any], name: str
) -> None:
    names = None if "acl" in grants else (".*",) * 3
    access = access_with(names=names, user=name, client_id=name, **grants)
    for topic in (b"u/ann/b/x", b"u/ann/b/c", b"u/ann/x", b"u//x"):
        assert not access.may_topic(READ, "amq.topic", key_of(topic))
    if "acl" not in grants:
        for wide in (b"u/+/#", b"u/ann/#", b"u/ann/b/#", b"u/#", b"#"):
            assert not access.may_subscribe("amq.topic", wide, True)
    for wide in (b"u.*.x", b"u.#", b"u.#.x", b"u.ann.b.#"):
        assert not access.may_read_all("amq.topic", wide)


def test_a_pattern_line_and_a_topic_permission_mean_the_same_by_a_name() -> None:
    """Else `a%2B` would have by the one what `a+` has by the other."""
    for name, key in (("a%2B", b"u.a%2B.x"), ("a.b", b"u.a/b.x")):
        topics = {"amq.topic": {"read": r"^u\.{username}\."}}
        for access in (
            access_with(names=("", "", ".*"), topics=topics, user=name),
            access_with(["pattern read u/%u/#"], user=name),
        ):
            assert access.may_topic(READ, "amq.topic", key)
            assert not access.may_topic(READ, "amq.topic", b"u.a+.x")


def test_a_variable_without_a_value_matches_nothing() -> None:
    topics = {"amq.topic": {"write": ".*{client_id}", "read": ""}}
    access = access_with(names=(".*",) * 3, topics=topics)
    assert not access.may_topic(WRITE, "amq.topic", b"")
    assert not access.may_topic(WRITE, "amq.topic", b"{client_id}")


def test_acl_lines_read_write_and_deny() -> None:
    access = access_with(["topic read a/#", "topic write b/+/c", "topic d", "topic deny a/secret"])
    assert access.may_topic(READ, "amq.topic", b"a")
    assert access.may_topic(READ, "amq.topic", b"a.b.c")
    assert not access.may_topic(READ, "amq.topic", b"a.secret")
    assert not access.may_topic(WRITE, "amq.topic", b"a.b")
    assert access.may_topic(WRITE, "amq.topic", b"b.x.c")
    assert not access.may_topic(WRITE, "amq.topic", b"b.x.y.c")
    assert access.may_topic(READ, "amq.topic", b"d")
    assert access.may_topic(WRITE, "amq.topic", b"d")
    assert not access.may_topic(READ, "other", b"d")


def test_a_wildcard_grants_no_dollar_topic_and_denies_each() -> None:
    """MQTT-4.7.2-1: `#` and `+/x` stand for no topic that begins with `$`."""
    access = access_with(["topic read #", "topic read +/x"])
    assert access.may_topic(READ, "amq.topic", b"a.x")
    assert not access.may_topic(READ, "amq.topic", b"$SYS.x")
    for denied in ("topic deny #", "topic deny +/x"):
        access = access_with([denied], names=(".*",) * 3)
        assert not access.may_topic(READ, "amq.topic", b"$SYS.x")


def test_an_acl_denies_what_a_pattern_grants() -> None:
    access = access_with(["topic deny a/#"], names=(".*", ".*", ".*"))
    assert not access.is_open
    assert not access.may_topic(WRITE, "amq.topic", b"a.b")
    assert access.may_topic(WRITE, "amq.topic", b"b")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+b", "x#"])
def test_names_with_wildcards_gain_nothing_by_a_pattern_line(name: str) -> None:
    for line in ("pattern readwrite %c/x", "pattern readwrite %u/x"):
        access = access_with([line], user=name, client_id=name)
        for key in (b"a.x", b"a.b.x", b"x", name.encode() + b".x", b"%c.x"):
            assert not access.may_topic(READ, "amq.topic", key)


@pytest.mark.parametrize("name", ["+", "#", "a/b", ""])
def test_what_a_pattern_line_was_to_deny_is_everything_where_that_is_not_known(name: str) -> None:
    access = access_with(["pattern deny %c/x"], names=(".*",) * 3, client_id=name)
    assert not access.is_open
    for key in (b"a", b"a.b.x", b".x"):
        assert not access.may_topic(READ, "amq.topic", key)
    assert access.may_topic(READ, "other", b"a")


def test_a_pattern_line_grants_nothing_to_a_client_without_the_name() -> None:
    access = access_with(["pattern read u/%c"])
    assert not access.may_topic(READ, "amq.topic", b"u.")


def test_an_acl_holds_in_the_home_of_its_user_alone() -> None:
    permissions = Permissions()
    permissions.set_user("ann", grants_of({"*": {"read": ".*"}}, {}, ["topic deny a"], []))
    permissions.home_of = {"ann": "farm"}.__getitem__
    assert not permissions.access(ANN, "farm").may_topic(READ, "amq.topic", b"a")
    assert permissions.access(ANN, "/").may_topic(READ, "amq.topic", b"a")


def test_a_topic_permission_of_every_virtual_host_holds_in_each_and_that_of_one_there() -> None:
    permissions = Permissions()
    topics = {
        "*": {"x": {"write": "^a", "read": "^a"}},
        "farm": {"y": {"write": "^a", "read": "^a"}},
    }
    permissions.set_user("ann", grants_of({"*": {"read": ".*"}}, topics, [], []))
    found = [
        [permissions.access(ANN, vhost).may_topic(READ, exchange, b"b") for exchange in "xyz"]
        for vhost in ("farm", "/")
    ]
    assert found == [[False, False, True], [False, True, True]]


def test_a_pattern_line_is_for_this_user_and_client() -> None:
    access = access_with(["pattern read u/%u/c/%c"], client_id="%u")
    assert access.may_topic(READ, "amq.topic", b"u.ann.c.%u")
    assert not access.may_topic(READ, "amq.topic", b"u.ann.c.ann")
    assert access_with(["pattern read u/%u"], user="a.b").may_topic(READ, "amq.topic", b"u.a/b")
    assert not access_with(["pattern read u/%u"], user="a.b").may_topic(READ, "amq.topic", b"u.a.b")


def test_a_filter_is_admitted_once_anything_of_it_may_be_read() -> None:
    access = access_with(["topic read a/+/c", "topic deny x/#"])
    for allowed in (b"a/b/c", b"a/+/c", b"#", b"+/+/+", b"a/#", b"+/b/#"):
        assert access.may_subscribe("amq.topic", allowed, True), allowed
    for refused in (b"a/b", b"b/#", b"+/+", b"a/b/c/d", b"+/+/d", b"x/#", b"x/y"):
        assert not access.may_subscribe("amq.topic", refused, True), refused


def test_a_filter_that_is_denied_as_a_whole_is_not_admitted() -> None:
    for access in (
        access_with(["topic deny a/#"], names=(".*",) * 3),
        access_with(["topic deny a/#", "topic read #"]),
    ):
        for allowed in (b"#", b"+/b", b"b/+"):
            assert access.may_subscribe("amq.topic", allowed, True), allowed
        for refused in (b"a/#", b"a/+", b"a/b/+"):
            assert not access.may_subscribe("amq.topic", refused, True), refused


def test_a_binding_must_be_covered_as_a_whole() -> None:
    access = access_with(["topic read a/#", "topic deny a/secret"], names=(".*", ".*", "^q$"))
    access.require_binding("amq.topic", b"a.b.*")
    for refused in (b"#", b"*.b", b"a.*", b"a.#", b"a.secret"):
        with pytest.raises(Exception, match="refused for user 'ann'"):
            access.require_binding("amq.topic", refused)


def may_write_every_topic(access: Access, exchange: str = "amq.topic") -> bool:
    try:
        access.require_every_topic(exchange)
    except AccessRefused:
        return False
    return True


def test_every_topic_is_written_by_who_is_not_narrowed_at_all() -> None:
    everything = (".*",) * 3
    assert may_write_every_topic(access_with([], names=everything))
    assert not may_write_every_topic(access_with(["topic write #"]))
    assert may_write_every_topic(access_with(["topic write a/#"], names=everything))
    denied = access_with(["topic deny a"], names=everything)
    assert not may_write_every_topic(denied)
    # ACL lines are about the exchange of MQTT's topics.
    assert may_write_every_topic(denied, "x")


def test_a_topic_permission_for_everything_does_not_narrow() -> None:
    for write, expected in ((".*", True), ("^a", False), ("", False)):
        permissions = Permissions()
        topics = {"/": {"amq.topic": {"write": write, "read": "^a"}}}
        permissions.set_user("ann", grants_of({"/": {"write": ".*"}}, topics, [], []))
        assert may_write_every_topic(permissions.access(ANN, "/")) is expected
        assert may_write_every_topic(permissions.access(ANN, "/"), "other")


def test_the_default_exchange_has_no_topics() -> None:
    permissions = Permissions()
    topics = {"/": {"amq.default": {"write": "^a", "read": ""}}}
    permissions.set_user("ann", grants_of({"/": {"write": "^amq.default$"}}, topics, [], []))
    assert may_write_every_topic(permissions.access(ANN, "/"), "")


def test_roles_add_to_each_other_and_end_with_their_deletion() -> None:
    permissions = Permissions()
    permissions.set_role("reader", grants_of({"/": {"read": "^a$"}}, {}, [], []))
    permissions.set_role("writer", grants_of({"/": {"write": "^a$"}}, {}, [], []))
    permissions.set_user("ann", grants_of({}, {}, [], ["reader", "writer", "missing"]))
    access = permissions.access(ANN, "/")
    assert access.may(READ, "a")
    assert access.may(WRITE, "a")
    assert not access.may(CONFIGURE, "a")
    permissions.set_role("reader", None)
    assert not access.may(READ, "a")
    assert access.may(WRITE, "a")


def test_a_decision_ends_with_the_permissions_that_it_was_made_by() -> None:
    permissions = Permissions()
    permissions.set_user("ann", grants_of({"/": {"read": ".*"}}, {}, [], []))
    access = permissions.access(ANN, "/")
    assert access.may(READ, "q")
    assert access.may_topic(READ, "amq.topic", b"a")
    permissions.set_user("ann", Grants())
    assert not access.may(READ, "q")
    assert not access.may_topic(READ, "amq.topic", b"a")


def test_a_decision_ends_with_what_is_granted_to_nobody_or_to_everybody() -> None:
    permissions = Permissions()
    access = permissions.access(ANONYMOUS, "/")
    assert not access.may(READ, "q")
    permissions.set_anonymous(grants_of({"/": {"read": ".*"}}, {}, [], []))
    assert access.may(READ, "q")
    assert access.may_topic(READ, "amq.topic", b"a")
    permissions.set_common([AclLine("pattern deny a")])
    assert not access.may_topic(READ, "amq.topic", b"a")


@pytest.mark.parametrize("text", ["", "topic", "read a", "topic read a#", "topic #/a", "user x"])
def test_what_is_no_acl_line_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed):
        AclLine(text)


def test_a_mosquitto_acl_file(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text(
        "# comment\ntopic read news/#\n\nuser ann\ntopic readwrite a b/#\n"
        "user bob\ntopic deny c\npattern write from/%u\n"
    )
    config = Config(
        auth=AuthConfig(acl_file=str(file)),
        users={"ann": UserConfig(password="x"), "bob": UserConfig(password="x")},
    )
    permissions = Permissions()
    configure_permissions(permissions, config)
    anonymous = permissions.access(ANONYMOUS, "/")
    assert anonymous.may_topic(READ, "amq.topic", b"news.x")
    assert not anonymous.may_topic(WRITE, "amq.topic", b"news.x")
    assert not anonymous.may_topic(READ, "amq.topic", b"a b.x")
    ann = permissions.access(ANN, "/")
    assert ann.may_topic(WRITE, "amq.topic", b"a b.x")
    assert ann.may_topic(WRITE, "amq.topic", b"from.ann")
    assert not ann.may_topic(WRITE, "amq.topic", b"from.bob")
    assert not ann.may_topic(READ, "amq.topic", b"news.x")


def test_the_configuration_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="invalid pattern"):
        UserConfig(password="x", permissions={"/": {"read": "("}})
    with pytest.raises(ConfigError, match="configure, write, read"):
        RoleConfig(permissions={"/": {"reed": ".*"}})
    file = tmp_path / "acl"
    file.write_text("user ann\ntopic nonsense#\n")
    with pytest.raises(ConfigError, match="line 2: is no topic "):
        AuthConfig(acl_file=str(file))


@pytest.mark.parametrize(
    "line", ["ann:$7$101$c2FsdA==$SECRET", "password SECRET", "topic SECRET#x", "SECRET"]
)
def test_what_is_in_a_file_that_is_no_acl_is_not_told(tmp_path: Path, line: str) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"# comment\n{line}\n")
    with pytest.raises(ConfigError, match="line 2: is no ") as caught:
        AuthConfig(acl_file=str(file))
    assert "SECRET" not in str(caught.value)


def test_one_of_the_tags_is_enough() -> None:
    permissions = Permissions()
    tags = frozenset(["administrator", "policymaker"])
    permissions.require_tag(Identity("ann", frozenset(["policymaker", "x"])), tags, "policies")
    for others in ([], ["x"]):
        with pytest.raises(AccessRefused, match="administrator or policymaker is needed"):
            permissions.require_tag(Identity("ann", frozenset(others)), tags, "policies")
    assert permissions.denials == 2


def test_the_configuration_holds_before_what_commands_granted_earlier() -> None:
    table = MemoryStorage().table("permissions")

    def opened(permissions: Permissions) -> Granted:
        granted = Granted(permissions, lambda _: None, Events())
        granted.open(table)
        return granted

    everything = grants_of({"/": {"read": ".*"}}, {}, [], [])
    granted = opened(Permissions())
    granted.set("user", "ann", everything)
    granted.set("role", "all", everything)
    configured = Permissions()
    configured.set_user("ann", grants_of({}, {}, [], ["all"]))
    configured.set_role("all", grants_of({"/": {"read": "^q$"}}, {}, [], []))
    granted = opened(configured)
    access = configured.access(ANN, "/")
    assert access.may(READ, "q")
    assert not access.may(READ, "r")
    # Where a user is deleted, or a virtual host, it stays.
    granted.forget_user("ann")
    assert list(granted.forget_vhost("/")) == []
    assert access.may(READ, "q")
    # What commands granted holds again without it.
    again = Permissions()
    opened(again)
    assert again.access(ANN, "/").may(READ, "r")


def test_who_is_told_whose_permissions_have_changed() -> None:
    """Those of a role are anybody's."""
    told: list[str | None] = []
    granted = Granted(Permissions(), told.append, Events())
    granted.open(MemoryStorage().table("permissions"))
    granted.set("user", "ann", Grants())
    granted.set("role", "reader", Grants())
    granted.delete("user", "ann")
    granted.delete("role", "reader")
    assert told == ["ann", None, "ann", None]


def test_what_is_taken_back_does_not_come_back_with_a_restart() -> None:
    table = MemoryStorage().table("permissions")
    granted = Granted(Permissions(), lambda _: None, Events())
    granted.open(table)
    granted.set("user", "ann", grants_of({"/": {"read": ".*"}}, {}, [], []))
    granted.delete("user", "ann")
    again = Permissions()
    Granted(again, lambda _: None, Events()).open(table)
    assert again.users() == []


def test_a_virtual_host_that_is_deleted_leaves_no_permission_for_topics() -> None:
    permissions = Permissions()
    granted = Granted(permissions, lambda _: None, Events())
    granted.open(MemoryStorage().table("permissions"))
    topics = {"x": {"write": "^a", "read": ""}}
    granted.set("user", "ann", grants_of({}, {"farm": topics, "/": topics}, [], []))
    assert list(granted.forget_vhost("farm")) == [1]
    found = permissions.user("ann")
    assert found is not None
    assert list(found.topics) == [("/", "x")]
    assert list(granted.forget_vhost("farm")) == []
