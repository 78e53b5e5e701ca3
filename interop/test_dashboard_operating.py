"""The pages of the dashboard by which somebody looks at messages, publishes, and changes things."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from interop.brokers import LOOPBACK
from interop.dashboard import MARKUP, PHONE, STREAMS, Dashboard, dashboard

pytestmark = [pytest.mark.one_build, pytest.mark.timeout(300)]

#: an exchange and a role whose names are markup
EXCHANGE = f"{MARKUP} exchange"
ROLE = "<b>role</b>"


class Api:
    """What the pages ask of, asked by an administrator."""

    def __init__(self, port: int) -> None:
        self._root = f"http://{LOOPBACK}:{port}/api/v1/"

    def ask(self, method: str, *names: str, body: object = None) -> Any:
        path = "/".join(quote(name, safe="") for name in names)
        data = None if body is None else json.dumps(body).encode()
        shown = base64.b64encode(b"root:p").decode()
        headers = {"Authorization": f"Basic {shown}", "Content-Type": "application/json"}
        with urlopen(
            Request(self._root + path, data, headers, method=method), timeout=30
        ) as answer:
            text = answer.read()
            return json.loads(text) if text else None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("dashboard")) as found:
        api = Api(found.broker.ports["http"])
        api.ask("PUT", "vhosts", "/", "exchanges", EXCHANGE, body={"type": "topic"})
        api.ask("PUT", "vhosts", "/", "exchanges", "shop", body={"type": "headers"})
        for source, destination, kind, key in (
            (EXCHANGE, "backlog", "queue", MARKUP),
            (EXCHANGE, STREAMS[1], "queue", "all.#"),
            ("amq.topic", EXCHANGE, "exchange", "#"),
            ("shop", "amq.topic", "exchange", ""),
            ("shop", "orders", "queue", ""),
        ):
            body = {
                "source": source,
                "destination": destination,
                "destination_kind": kind,
                "key": key,
            }
            api.ask("POST", "vhosts", "/", "bindings", body=body)
        api.ask("PUT", "vhosts", MARKUP, body={"description": MARKUP, "limits": {"max-queues": 9}})
        policy = {"pattern": MARKUP, "definition": {"max-length": 5}, "apply_to": "queues"}
        for things in ("policies", "operator-policies"):
            api.ask("PUT", "vhosts", "/", things, MARKUP, body=policy)
        patterns = {"configure": "", "write": MARKUP, "read": ".*"}
        role = {
            "permissions": {"/": patterns},
            "topic_permissions": {"/": {"amq.topic": {"write": "^a", "read": ""}}},
            "acl": [f"topic read {MARKUP.replace('#', '')}"],
        }
        api.ask("PUT", "roles", ROLE, body=role)
        api.ask("PUT", "users", MARKUP, body={"password": "p", "tags": [], "roles": [ROLE]})
        api.ask("PUT", "users", MARKUP, "permissions", "/", body=patterns)
        api.ask(
            "PUT",
            "users",
            MARKUP,
            "topic-permissions",
            "/",
            "amq.topic",
            body={"write": "", "read": "x"},
        )
        yield found


def rows(site: Dashboard, text: str) -> None:
    """Wait for a row of a table with this text."""
    site.page.wait(
        "[...document.querySelectorAll('tbody tr')].some((each) =>"
        f" each.textContent.includes({json.dumps(text)}))"
    )


def offered(site: Dashboard) -> dict[str, bool]:
    """The buttons of the page's heading, and whether they can be pressed."""
    found: dict[str, bool] = site.page.run(
        "Object.fromEntries([...document.querySelectorAll('main .heading button')]"
        ".map((each) => [each.textContent, !each.disabled]))"
    )
    return found


def leads(site: Dashboard) -> list[str]:
    """The links of the page's heading that look as buttons do."""
    found: list[str] = site.page.run(
        "[...document.querySelectorAll('main .heading a.button')].map((each) => each.textContent)"
    )
    return found


def test_exchanges_are_made_bound_drawn_and_deleted(site: Dashboard) -> None:
    site.sign_in()
    site.visit("exchanges")
    rows(site, EXCHANGE)
    site.check("exchanges")
    site.press("New exchange")
    site.fill(name="new", type="fanout", arguments="[]")
    site.press("Create")
    site.wait_for_text("Arguments is a JSON object", "dialog")
    site.fill(arguments='{"alternate-exchange": "amq.topic"}')
    site.check("exchange-new")
    site.press("Create")
    site.wait_for_text("alternate-exchange")
    site.press("Bind")
    site.fill(destination="orders", key="k")
    site.press("Bind")
    rows(site, "orders")
    site.press("Remove")
    site.press("Remove")
    site.wait_for_text("Nothing is bound.")
    site.press("Delete")
    site.fill(name="new")
    site.press("Delete")
    site.page.wait("location.hash === '#/exchanges'")
    site.visit("exchanges", "/", EXCHANGE)
    site.page.wait("document.querySelectorAll('.node').length >= 4")
    site.check("exchange")


def test_the_drawing_of_bindings_is_walked_through_by_keyboard(site: Dashboard) -> None:
    site.sign_in()
    site.visit("bindings")
    site.page.wait("document.querySelectorAll('.node.session').length >= 2")
    site.page.wait("document.querySelector('.node.stream') && document.querySelector('.edge text')")
    # It is the same as the table says.
    drawn = "document.querySelectorAll('.edge').length"
    site.page.wait(f"{drawn} > 5 && document.querySelectorAll('tbody tr').length >= {drawn}")
    site.check("bindings")
    site.page.run("document.querySelector('.drawing').focus()")
    site.page.press("Tab")
    site.page.wait("document.activeElement.closest('.node') && document.querySelector('.edge.lit')")
    site.page.press("Enter")
    site.page.wait("location.hash.startsWith('#/exchanges/')")


def test_a_queue_is_looked_through_and_nothing_is_taken(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("queues", "/", "backlog")
    site.press("Messages")
    tab.wait("document.querySelectorAll('.messages li').length === 20")
    tab.run("document.querySelector('.messages summary').click()")
    tab.wait("document.querySelector('.payload pre')?.textContent.includes('  \"text\"')")
    assert MARKUP in tab.run("document.querySelector('.message .facts').textContent")
    site.press("Hex")
    tab.wait("document.querySelector('.payload pre').textContent.startsWith('000000  7b 22 74')")
    site.press("Text")
    site.press("Copy")
    tab.wait("document.querySelector('.notice')")
    site.check("messages")
    first = tab.run("document.querySelector('.messages b').textContent")
    site.press("Next")
    tab.wait(f"document.querySelector('.messages b').textContent !== {json.dumps(first)}")
    site.press("Back")
    site.press("First")
    tab.wait("document.querySelector('.messages')")
    # A number that is in the address leads there; what is not there is said.
    tab.run("void (location.hash = '#/messages?kind=queue&vhost=%2F&name=backlog&first=999999999')")
    site.wait_for_text("There are none here.")
    tab.run("void (location.hash = '#/messages?kind=queue&vhost=%2F&name=nobody')")
    site.wait_for_text("no queue 'nobody'")
    tab.troubles.clear()


def test_a_stream_is_looked_through_by_partition_and_offset(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("messages")
    site.fill(kind="stream", vhost="/", name=STREAMS[1], partition="0", first="")
    site.press("Show")
    tab.wait("document.querySelectorAll('.messages li').length > 0")
    assert tab.run("document.querySelector('.messages b').textContent") == "#0"
    tab.run("document.querySelector('.messages summary').click()")
    tab.wait("document.querySelector('.payload pre')?.textContent.includes('21.5')")
    site.check("messages-stream")
    site.press("Newest")
    tab.wait("document.querySelector('.messages b').textContent !== '#0'")
    site.fill(partition="77")
    site.press("Show")
    site.wait_for_text("has no partition 77")
    tab.troubles.clear()


def test_publishing_by_each_road(site: Dashboard) -> None:
    site.sign_in()
    site.visit("publish")
    site.fill(road="exchange", exchange="shop", key=MARKUP, payload="{", kind="JSON")
    site.press("Publish")
    site.wait_for_text("Payload: ")
    site.fill(payload='{"a": 1}', headers='{"x": "<b>"}')
    site.press("Publish")
    site.wait_for_text("accepted")
    site.check("publish")
    site.fill(exchange="", key="nobody")
    site.press("Publish")
    site.wait_for_text("led nowhere")
    site.fill(exchange="nothing")
    site.press("Publish")
    site.wait_for_text("no exchange 'nothing'")
    site.page.troubles.clear()
    site.fill(road="topic")
    site.fill(
        topic="by/hand", retain="yes", payload="AAEC", kind="Base64", user_properties="a: 1\nb: 2"
    )
    site.check("publish-topic")
    site.press("Publish")
    site.page.wait("document.querySelectorAll('.outcomes li').length === 3")
    api = Api(site.broker.ports["http"])
    found = api.ask("GET", "vhosts", "/", "retained", "by/hand")
    assert (found["payload_base64"], found["headers"]) == ("AAEC", {"a": "1", "b": "2"})
    site.fill(road="stream")
    site.fill(stream=STREAMS[0], partition_key="k", kind="Text", payload=MARKUP)
    site.press("Publish")
    site.page.wait("document.querySelectorAll('.outcomes li').length === 4")
    site.page.wait("document.querySelector('.outcomes li').className === 'good'")


def test_sessions(site: Dashboard) -> None:
    site.sign_in()
    site.visit("sessions")
    rows(site, MARKUP)
    site.check("sessions")
    site.visit("sessions", "/", MARKUP)
    rows(site, "plant/#")
    site.check("session")
    site.press("End")
    site.fill(name="another")
    site.press("End it")
    site.wait_for_text("another name", "dialog")
    site.press("Cancel")


def test_a_drawing_opens_where_its_ways_begin(site: Dashboard) -> None:
    tab = site.page
    api = Api(site.broker.ports["http"])
    api.ask("PUT", "vhosts", "many", body={})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.ask("PUT", "users", "root", "permissions", "many", body=everything)
    for name in ("first", "middle"):
        api.ask("PUT", "vhosts", "many", "exchanges", name, body={"type": "fanout"})
    path = ("vhosts", "many", "bindings")
    to_exchange = {"destination_kind": "exchange"}
    api.ask("POST", *path, body={"source": "first", "destination": "middle", **to_exchange})
    for number in range(30):
        name = f"q{number:02}"
        api.ask("PUT", "vhosts", "many", "queues", name, body={})
        api.ask("POST", *path, body={"source": "middle", "destination": name})
    site.sign_in()
    tab.look(PHONE, 844)
    site.visit(
        "exchanges", "many", "middle", waits_for="document.querySelectorAll('.node').length > 30"
    )
    seen = (
        "(() => { const place = document.querySelector('.drawing').getBoundingClientRect();"
        " const box = [...document.querySelectorAll('.node')].find((each) =>"
        " each.textContent.includes('middle')).getBoundingClientRect();"
        " return box.left >= place.left && box.right <= place.right"
        " && box.top >= place.top && box.bottom <= place.bottom })()"
    )
    tab.wait(seen)
    tab.look()
    api.ask("DELETE", "vhosts", "many")


def test_retained_topics_are_a_tree(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("retained")
    for level in ("plant", "hall1", "machine1"):
        fold = (
            "[...document.querySelectorAll('.fold[aria-label]')].find("
            f"(each) => each.ariaLabel.endsWith('{level}'))"
        )
        tab.wait(fold)
        # The name itself unfolds what is below it.
        assert level in tab.run(f"{fold}.textContent")
        tab.run(f"{fold}.focus()")
        tab.press("Enter")
        tab.wait(f"{fold}.ariaExpanded === 'true'")
    site.press("temperature")
    tab.wait("document.querySelector('.payload pre')")
    site.check("retained")
    site.fill(filter="plant/+/+")
    site.press("Search")
    tab.wait("document.querySelectorAll('form ~ .tree, form ~ div .tree').length > 1")
    site.press(f"plant/{MARKUP.replace('#', '')}")
    tab.wait("document.querySelector('h3')?.textContent.startsWith('plant/<img')")
    site.check("retained-found")
    site.press("Clear")
    site.press("Clear")
    tab.wait("!document.querySelector('.payload')")


def test_policies_are_made_changed_and_deleted(site: Dashboard) -> None:
    site.sign_in()
    for things, kind in (("policies", "policy"), ("operator-policies", "operator policy")):
        site.visit(things)
        rows(site, MARKUP)
        site.check(things)
        site.press(f"New {kind}")
        site.fill(name="short", pattern="^tmp", definition='{"max-length": "x"}')
        site.press("Create")
        site.page.wait("document.querySelector('dialog .trouble:not([hidden])')")
        site.fill(definition='{"max-length": 7}', priority="3")
        site.page.troubles.clear()
        site.check(f"{things}-new")
        site.press("Create")
        rows(site, "short")
        row = (
            "[...document.querySelectorAll('tbody tr')].find("
            "(each) => each.textContent.startsWith('short'))"
        )
        site.page.run(f"{row}.querySelector('button').click()")
        site.fill(priority="4")
        site.press("Save")
        site.page.wait(f"{row}?.textContent.includes('4')")
        site.page.run(f"{row}.querySelector('button.danger').click()")
        site.press("Delete")
        site.page.wait(f"!{row}")


def test_users_are_made_and_given_what_they_may(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("users")
    rows(site, MARKUP)
    site.check("users")
    site.press("New user")
    site.fill(name="ann", password="secret", again="other", tags="monitoring")
    site.press("Create")
    site.wait_for_text("not the same", "dialog")
    site.fill(again="secret")
    site.press("Create")
    site.wait_for_text("monitoring")
    site.press("Tags")
    site.fill(tags="management, policymaker")
    site.press("Save")
    site.wait_for_text("policymaker")
    site.press("Grant")
    site.fill(vhost="/", write="^shop$")
    site.press("Save")
    rows(site, "^shop$")
    site.press("Grant topics")
    site.fill(vhost="/", write="^plant")
    site.press("Save")
    rows(site, "^plant")
    site.press("Limits")
    site.fill(limits='{"max-connections": 3}')
    site.press("Save")
    site.wait_for_text("max-connections")
    site.check("user")
    site.press("Take back")
    site.press("Take back")
    site.wait_for_text("It may do nothing by itself.")
    site.press("Delete")
    site.fill(name="ann")
    site.press("Delete")
    tab.wait("location.hash === '#/users'")
    site.visit("users", MARKUP)
    rows(site, MARKUP)
    site.check("user-markup")
    # What the configuration says is changed there.
    site.visit("users", "watcher")
    site.wait_for_text("Of the configuration")
    assert offered(site) == {}


def test_keys_are_made_shown_once_and_taken_back(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("keys", waits_for="document.querySelector('.tools button')")
    tab.run("document.querySelector('.tools button').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('dialog')")
    site.fill(user="nobody else")
    site.press("Create")
    site.wait_for_text("no user 'nobody else'", "dialog")
    tab.troubles.clear()
    site.fill(user="watcher", scopes="tag:monitoring read:*/*", expires="2100-01-01T00:00")
    site.check("key-new")
    site.press("Create")
    tab.wait("document.querySelector('.secret')")
    secret = tab.run("document.querySelector('.secret').textContent")
    assert secret.startswith("trivium_")
    site.check("key-secret")
    site.press("Copy")
    tab.wait("/copied|selected/.test(document.querySelector('dialog [role=status]').textContent)")
    site.press("Done")
    tab.wait("!document.querySelector('dialog')")
    # The focus is back where it began, and the secret is nowhere.
    assert tab.run("document.activeElement.textContent") == "New key"
    assert secret not in tab.run(
        "document.documentElement.outerHTML + JSON.stringify({...localStorage})"
    )
    rows(site, "tag:monitoring")
    site.check("keys")
    shown = {"Authorization": f"Bearer {secret}"}
    url = f"http://{LOOPBACK}:{site.broker.ports['http']}/api/v1/whoami"
    with urlopen(Request(url, headers=shown), timeout=30) as answer:
        who = {"name": "watcher", "tags": ["monitoring"], "has_own_keys": False}
        assert json.loads(answer.read()) == who
    site.visit("users", "watcher")
    rows(site, "tag:monitoring")
    site.check("user-with-key")
    site.press("Take back")
    site.press("Take back")
    tab.wait(
        "![...document.querySelectorAll('tbody')].some((each) => each.textContent.includes('tag:'))"
    )
    with pytest.raises(HTTPError, match="401"):
        urlopen(Request(url, headers=shown), timeout=30)
    assert tab.troubles == []


def test_shared_subscriptions(site: Dashboard) -> None:
    site.sign_in("watcher")
    site.visit("shared-subscriptions")
    rows(site, "plant/hall0/#")
    assert site.page.run("document.querySelector('tbody tr').cells[3].textContent") == "2"
    site.check("shared-subscriptions")
    site.page.click("tbody tr a")
    site.wait_for_text("Session of ")
    site.sign_in("plain")
    site.visit("shared-subscriptions")
    site.wait_for_text("There is no such page")


def test_roles_are_made_and_deleted(site: Dashboard) -> None:
    site.sign_in()
    site.visit("roles")
    rows(site, ROLE)
    site.check("roles")
    site.press("New role")
    site.fill(name="clerk", permissions='{"/": {"read": "^shop$"}}', acl="topic read shop/#")
    site.press("Create")
    site.wait_for_text("topic read shop/#")
    site.check("role")
    site.press("Delete")
    site.fill(name="clerk")
    site.press("Delete")
    site.page.wait("location.hash === '#/roles'")


def test_virtual_hosts_are_made_limited_and_deleted(site: Dashboard) -> None:
    site.sign_in()
    tab = site.page
    site.visit("vhosts")
    rows(site, MARKUP)
    site.check("vhosts")
    site.press("New virtual host")
    site.fill(name="farm", description="the farm", limits='{"max-queues": 5}')
    site.press("Create")
    site.wait_for_text("max-queues")
    # It can be chosen.
    tab.wait("[...document.querySelector('#vhost').options].some((each) => each.value === 'farm')")
    site.press("Change")
    site.fill(limits='{"max-queues": 6}')
    site.press("Save")
    site.wait_for_text("max-queues = 6")
    site.check("vhost")
    site.press("Delete")
    site.fill(name="farm")
    site.press("Delete")
    tab.wait("location.hash === '#/vhosts'")
    tab.wait("![...document.querySelector('#vhost').options].some((each) => each.value === 'farm')")


def test_users_make_and_take_back_their_own_keys(site: Dashboard) -> None:
    site.sign_in("plain")
    tab = site.page
    site.visit("keys", waits_for="document.querySelector('.tools button')")
    assert "User" not in tab.run("document.querySelector('main thead').textContent")
    site.press("New key")
    tab.wait("document.querySelector('dialog')")
    assert tab.run("document.querySelector('dialog [name=user]')") is None
    site.fill(scopes="tag:administrator")
    site.press("Create")
    site.wait_for_text("no tag 'administrator'", "dialog")
    tab.troubles.clear()
    site.fill(scopes="management read:*/own")
    site.press("Create")
    tab.wait("document.querySelector('.secret')")
    secret = tab.run("document.querySelector('.secret').textContent")
    site.press("Done")
    rows(site, "read:*/own")
    site.check("keys-own")
    # Who has come by a key makes none.
    site.sign_in("plain", secret)
    assert "API keys" not in tab.run("document.querySelector('.pages-of-all').textContent")
    site.sign_in("plain")
    site.visit("keys")
    rows(site, "read:*/own")
    site.press("Take back")
    site.press("Take back")
    tab.wait("document.querySelector('.empty:not([hidden])')")
    assert tab.troubles == []


def test_what_permissions_do_not_allow_is_not_offered(site: Dashboard) -> None:
    site.sign_in("reader")
    tab = site.page
    for page in ("queues", "streams", "exchanges"):
        site.visit(page, waits_for="document.querySelector('tbody tr')")
        assert tab.run("document.querySelector('.tools button')") is None
    site.visit("queues", "/", "backlog")
    site.wait_for_text("You may not configure “backlog”.")
    assert offered(site) == {"Purge": True, "Delete": False}
    assert leads(site) == ["Messages"]
    site.check("queue-reader")
    site.visit("streams", "/", STREAMS[0])
    site.wait_for_text(f"You may not configure “{STREAMS[0]}”.")
    assert offered(site) == {"Delete": False}
    assert leads(site) == ["Messages"]
    site.visit("groups", "/", "billing")
    site.wait_for_text("You may not configure “billing”.")
    assert offered(site) == {"Reset offsets": True, "Delete": False}
    site.visit("exchanges", "/", "shop")
    site.wait_for_text("You may not configure “shop”.")
    assert offered(site) == {"Bind": True, "Delete": False}
    assert leads(site) == []
    for place in (("exchanges", "/", "shop"), ("bindings",)):
        site.visit(*place, waits_for="document.querySelector('.list tbody tr, table tbody tr')")
        assert tab.run("document.querySelectorAll('table button').length") == 0
    tab.run("void (location.hash = '#/retained?vhost=%2F&topic=plant/hall1/machine1/temperature')")
    site.wait_for_text("You may not write “plant/hall1/machine1/temperature”.")
    assert offered(site) == {"Clear": False}
    assert leads(site) == []
    # What belongs to a session is nobody's here.
    site.sign_in()
    site.visit("queues", "/", "amq.mqtt-session.sensor")
    site.wait_for_text("It belongs to a session.")
    assert offered(site) == {"Purge": False, "Delete": False}
    assert leads(site) == ["Messages", "Publish"]
    assert tab.troubles == []


@pytest.mark.parametrize("user", ["watcher", "plain", "keeper"])
def test_what_the_tags_do_not_allow_is_not_offered(site: Dashboard, user: str) -> None:
    site.sign_in(user)
    tab = site.page
    shown = tab.run(
        "[...document.querySelectorAll('.pages-of-all a')].map((each) => each.textContent)"
    )
    assert not {"Users", "Roles"} & set(shown)
    assert {"API keys", "Exchanges", "Bindings", "Message browser", "Publish", "Retained"} <= set(
        shown
    )
    for page in ("users", "roles"):
        site.visit(page)
        site.wait_for_text("There is no such page")
    for page, name in (
        ("policies", "New policy"),
        ("operator-policies", "New operator policy"),
        ("vhosts", "New virtual host"),
    ):
        site.visit(page)
        tab.wait("document.querySelector('.list tbody tr')")
        offered = tab.run(
            "[...document.querySelectorAll('main button')].map((each) => each.textContent)"
        )
        assert (name in offered) is (user == "keeper" and page == "policies"), (user, page)
        assert ("Delete" in offered) is (user == "keeper" and page == "policies")
    site.visit("vhosts", "/")
    site.wait_for_text("Firehose")
    assert tab.run("document.querySelectorAll('main button').length") == 0
    if user == "watcher":
        site.visit("sessions", "/", "sensor")
        rows(site, "plant/#")
        assert tab.run("document.querySelectorAll('main button').length") == 0
    assert tab.troubles == []
