"""API keys that users who are no administrators have of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.rest import Site, serve
from trivium.security import api_keys


async def made(site: Site, user: str = "man", **body: Any) -> dict[str, Any]:
    status, key = await site.ask("POST", f"users/{user}/keys", user, json=body)
    assert status == 201, key
    found: dict[str, Any] = key
    return found


def bearer(key: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {key['key']}"}


async def test_users_make_list_and_take_back_their_own_keys(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        expires = int(time.time() * 1000) + 3_600_000
        key = await made(site, scopes=["tag:management", "read:*/q"], expires_at=expires)
        shown = {
            "id": key["id"],
            "user": "man",
            "scopes": ["read:*/q", "tag:management"],
            "expires_at": expires,
        }
        for path in ("users/man/keys", "keys"):
            assert (await site.ask("GET", path, "man"))[1]["items"] == [shown]
        assert (await site.ask("GET", "whoami", "", headers=bearer(key)))[1]["name"] == "man"
        assert await site.ask("DELETE", f"keys/{key['id']}", "man") == (204, None)
        assert (await site.ask("GET", "keys", "man"))[1]["items"] == []
        assert (await site.ask("GET", "whoami", "", headers=bearer(key)))[0] == 401
        assert (await site.ask("DELETE", f"keys/{key['id']}", "man"))[0] == 404


async def test_keys_of_others_are_not_for_who_is_no_administrator(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        others = await made(site, "pol")
        assert (await site.ask("GET", "users/pol/keys", "man"))[0] == 403
        assert (await site.ask("GET", "users/nobody/keys", "man"))[0] == 403
        assert (await site.ask("POST", "users/pol/keys", "man", json={}))[0] == 403
        assert (await site.ask("GET", "keys", "man"))[1]["items"] == []
        refused = await site.ask("DELETE", f"keys/{others['id']}", "man")
        unknown = await site.ask("DELETE", "keys/0123456789abcdef", "man")
        assert refused[0] == unknown[0] == 404, "it is not said whether it is there"
        assert (await site.ask("GET", "whoami", "", headers=bearer(others)))[0] == 200
        found = (await site.ask("GET", "keys"))[1]["items"]
        assert [each["user"] for each in found] == ["pol"], "an administrator sees all"


async def test_a_key_makes_no_keys(tmp_path: Path) -> None:
    """It would give more, or for longer, than itself."""
    async with serve(tmp_path) as site:
        key = await made(site, scopes=["tag:management", "read:*/q"])
        for headers in (bearer(key), bearer(await made(site))):
            for method, path in (
                ("POST", "users/man/keys"),
                ("GET", "users/man/keys"),
                ("GET", "keys"),
                ("DELETE", f"keys/{key['id']}"),
            ):
                options: Any = {"json": {}} if method == "POST" else {}
                asked = await site.ask(method, path, "", headers=headers, **options)
                assert asked[0] == 403, (method, path)
            _, found = await site.ask("GET", "whoami", "", headers=headers)
            assert not found["has_own_keys"]
        assert (await site.ask("GET", "whoami", "man"))[1]["has_own_keys"]


async def test_a_key_has_no_tag_that_its_maker_has_not(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for maker in ("man", "root"):
            for tag in ("administrator", "tag:monitoring", "tag:administrator"):
                body = {"scopes": ["management", tag]}
                status, found = await site.ask("POST", "users/man/keys", maker, json=body)
                assert status == 409, tag
                assert f"no tag '{tag.removeprefix('tag:')}'" in found["detail"]


async def test_a_scope_that_is_misspelt_is_refused_by_the_forms_that_there_are(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as site:
        for maker in ("man", "root"):
            for scope in ("read:v/a read:v/b", "read:v/%zz", "read", "tag:read:v/a"):
                body = {"scopes": [scope]}
                status, found = await site.ask("POST", "users/man/keys", maker, json=body)
                assert status == 409, scope
                assert "VHOST/NAME[/KEY]" in found["detail"]


async def test_a_key_without_any_scope_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for maker in ("man", "root"):
            status, found = await site.ask("POST", "users/man/keys", maker, json={"scopes": []})
            assert status == 422
            assert "scopes" in found["detail"]
        assert (await made(site, scopes=None))["scopes"] is None


async def test_scopes_of_a_key_give_nothing_that_its_user_has_not(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        site.broker.vhost("/").declare_queue("q")
        key = await made(site, "ann", scopes=["monitoring", "configure:*/*", "read:*/*"])
        path = "vhosts/%2F/queues/q"
        assert (await site.ask("DELETE", f"{path}/contents", "", headers=bearer(key)))[0] == 403
        assert (await site.ask("DELETE", path, "", headers=bearer(key)))[0] == 403


async def test_a_user_makes_so_many_keys_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MAX_OWN_KEYS", 2)
    async with serve(tmp_path) as site:
        await made(site)
        await made(site)
        status, found = await site.ask("POST", "users/man/keys", "man", json={})
        assert status == 409
        assert "2 keys" in found["detail"]
        await made(site, "pol")
        assert (await site.ask("POST", "users/man/keys", json={}))[0] == 201, "an administrator may"
        for key in (await site.ask("GET", "keys", "man"))[1]["items"][1:]:
            assert (await site.ask("DELETE", f"keys/{key['id']}", "man"))[0] == 204
        await made(site)


async def test_bindings_say_whether_the_caller_may_remove_them(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = "vhosts/%2F"
        for name in ("q", "other"):
            await site.ask("PUT", f"{vhost}/queues/{name}", json={})
        await site.ask("PUT", f"{vhost}/exchanges/e", json={"type": "topic"})
        for source, destination in (("e", "q"), ("e", "other"), ("amq.topic", "q")):
            body = {"source": source, "destination": destination, "key": "a.b"}
            assert (await site.ask("POST", f"{vhost}/bindings", json=body))[0] == 201
        patterns = {"configure": "", "write": "^q$", "read": "^e$"}
        await site.ask("PUT", "users/man/permissions/%2F", json=patterns)
        await site.ask("DELETE", "users/man/permissions/*")

        async def removable(user: str) -> set[tuple[str, str]]:
            items = (await site.ask("GET", f"{vhost}/bindings", user))[1]["items"]
            return {(each["source"], each["destination"]) for each in items if each["is_removable"]}

        every = {("e", "q"), ("e", "other"), ("amq.topic", "q")}
        assert await removable("root") == every
        for user in ("man", "root"):
            offered = await removable(user)
            for source, destination in every:
                body = {"source": source, "destination": destination, "key": "a.b"}
                status, _ = await site.ask("POST", f"{vhost}/bindings/delete", user, json=body)
                assert status == (204 if (source, destination) in offered else 403)
                await site.ask("POST", f"{vhost}/bindings", json=body)
