"""The dashboard in Chromium: each page with load behind it, dark, light and on a phone."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from interop.brokers import LOOPBACK
from interop.chromium import page, trust
from interop.dashboard import MARKUP, PHONE, STREAMS, Dashboard, dashboard, users
from interop.management import Api
from interop.native import open_client
from interop.site import Site
from trivium.management.places import MAX_PLACES
from trivium_native.values import Publication

pytestmark = [pytest.mark.one_build, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("dashboard")) as found:
        yield found


def test_signing_in_and_out(site: Dashboard) -> None:
    tab = site.page
    tab.open(site.url)
    tab.wait("document.querySelector('.sign-in')")
    # That nobody has signed in is no error, in the console either.
    assert tab.troubles == []
    site.check("sign-in")
    for user, text in (("joe", "another password"), ("nobody", "may not use the dashboard")):
        tab.run("document.querySelector('[name=user]').select()")
        tab.type(user)
        tab.press("Tab")
        tab.type("p")
        tab.press("Enter")
        tab.wait(
            f"document.querySelector('.trouble:not([hidden])')?.textContent.includes('{text}')"
        )
        tab.run("document.querySelector('[name=user]').focus()")
    tab.troubles.clear()
    site.sign_in()
    # The page has nothing by which somebody else could come in.
    assert tab.run("document.cookie") == ""
    kept = tab.run("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
    assert "Basic" not in kept
    tab.run("[...document.querySelectorAll('.who button')].at(-1).click()")
    tab.wait("document.querySelector('.sign-in')")
    assert tab.troubles == []
    tab.open(site.url + "#/queues")
    tab.wait("document.querySelector('.sign-in')")
    tab.troubles.clear()


def test_the_overview_moves(site: Dashboard) -> None:
    site.sign_in()
    site.visit("overview", waits_for="document.querySelectorAll('.figure').length > 5")
    for protocol in ("amqp", "mqtt", "native"):
        site.page.wait(
            "[...document.querySelectorAll('.chart:first-child .legend li')].some((each) =>"
            f" each.textContent.startsWith('{protocol}') && !/ 0\\/s/.test(each.textContent))"
        )
    site.check("overview")


def asked_for_live_figures(site: Dashboard, count: int) -> Request:
    shown = base64.b64encode(b"root:p").decode()
    url = f"{site.url}api/v1/live?count={count}"
    return Request(url, headers={"Authorization": f"Basic {shown}"})


def test_who_gets_no_place_among_the_live_figures_asks_for_them(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    tab.open("about:blank")
    with contextlib.ExitStack() as others:
        places = 0
        # The broker may not have seen yet that the page has left its own.
        while places < MAX_PLACES:
            with contextlib.suppress(HTTPError):
                others.enter_context(urlopen(asked_for_live_figures(site, 600), timeout=30))
                places += 1
        tab.open(site.url + "#/overview")
        tab.wait(
            "[...document.querySelectorAll('.chart:first-child .legend li')].some((each) =>"
            " each.textContent.startsWith('mqtt') && !/ 0\\/s/.test(each.textContent))"
        )
        assert tab.run("document.querySelector('.banner').hidden")
        assert "running" in tab.run("document.getElementById('state').textContent")
        tab.open("about:blank")
    # The browser writes down that there is no place.
    assert all("429" in each for each in tab.troubles), tab.troubles
    # There is a place again.
    while True:
        with contextlib.suppress(HTTPError):
            urlopen(asked_for_live_figures(site, 1), timeout=30).read()
            break


def test_queues(site: Dashboard) -> None:
    site.sign_in()
    site.visit("queues", waits_for="document.querySelectorAll('tbody tr').length >= 4")
    site.page.wait("/[1-9].*\\/s/.test(document.querySelector('tbody').innerText)")
    site.check("queues")
    site.visit("queues", "/", "orders", waits_for="document.querySelectorAll('tbody').length > 1")
    site.page.wait("document.querySelectorAll('.chart')[1].textContent.includes('/s')")
    site.check("queue")
    site.visit("queues", "/", MARKUP, waits_for="document.querySelectorAll('tbody').length > 1")
    assert MARKUP in site.page.run("document.querySelector('h1').textContent")
    site.check("queue-markup")


def test_streams_with_their_lag(site: Dashboard) -> None:
    site.sign_in()
    site.visit("streams", waits_for="document.querySelectorAll('tbody tr').length === 2")
    site.check("streams")
    lag = "document.querySelector('.part:nth-of-type(1) tbody')"
    site.visit("streams", "/", STREAMS[1], waits_for=f"{lag}?.rows.length === 2")
    site.page.wait(f"/[1-9]/.test({lag}.rows[1].cells[4].textContent)")
    site.page.wait("document.querySelectorAll('.chart .line').length >= 3")
    site.check("stream")
    site.visit("groups", waits_for="document.querySelectorAll('tbody tr').length === 2")
    site.check("groups")
    site.visit("groups", "/", MARKUP, waits_for="document.querySelectorAll('tbody tr').length >= 6")
    site.check("group")


def test_connections_and_channels(site: Dashboard) -> None:
    site.sign_in()
    site.visit("connections", waits_for="document.querySelectorAll('tbody tr').length >= 4")
    site.page.wait("/[1-9].*B\\/s/.test(document.querySelector('tbody').innerText)")
    site.check("connections")
    site.page.click("tbody tr:nth-child(1) a")
    site.page.wait("document.querySelectorAll('.chart .line').length >= 3")
    site.check("connection")
    site.visit("channels", waits_for="document.querySelector('tbody tr')")
    site.check("channels")


def test_the_node(site: Dashboard) -> None:
    site.sign_in()
    site.visit("node", waits_for="document.querySelectorAll('tbody').length >= 3")
    site.check("node")


def button(text: str) -> str:
    """The button that says this, as an expression."""
    return f"[...document.querySelectorAll('button')].find((each) => each.textContent === {text!r})"


def test_a_queue_is_created_purged_and_deleted_by_keyboard(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("queues", waits_for="document.querySelector('tbody tr')")
    tab.run(f"{button('New queue')}.focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('dialog[open]')")
    assert tab.run("document.activeElement.name") == "name"
    tab.press("Escape")
    tab.wait("!document.querySelector('dialog')")
    assert tab.run("document.activeElement.textContent") == "New queue"
    tab.press("Enter")
    tab.wait("document.activeElement.name === 'name'")
    tab.type("new <b>queue</b>")
    tab.run("document.querySelector('[name=arguments]').focus()")
    tab.type('{"x-max-length": "many"}')
    tab.run("document.querySelector('dialog [type=submit]').focus()")
    tab.press("Enter")
    # The broker says what is wrong, and the window stays.
    tab.wait("document.querySelector('dialog .trouble:not([hidden])')")
    tab.troubles.clear()
    site.check("new-queue")
    tab.run("document.querySelector('[name=arguments]').value = '{\"x-max-length\": 5}'")
    tab.press("Enter")
    tab.wait("document.querySelector('h1')?.textContent === 'Queue new <b>queue</b>'")
    tab.wait("document.querySelector('.arguments')?.textContent.includes('x-max-length')")
    tab.run(f"{button('Purge')}.click()")
    tab.wait("document.querySelector('dialog[open]')")
    tab.run("document.querySelector('dialog [type=submit]').click()")
    tab.wait("document.querySelector('#notices')?.textContent.includes('0 messages were removed')")
    tab.run(f"{button('Delete')}.click()")
    tab.wait("document.activeElement.name === 'name'")
    tab.type("another")
    tab.press("Enter")
    tab.wait("document.querySelector('.trouble')?.textContent === 'That is another name.'")
    tab.run("document.querySelector('dialog [name=name]').select()")
    tab.type("new <b>queue</b>")
    site.check("delete-queue")
    tab.press("Enter")
    tab.wait("document.querySelector('h1')?.textContent === 'Queues'")
    tab.wait("document.querySelector('tbody') && !document.body.innerText.includes('new <b>')")
    site.check_text()


def test_what_is_called_dots_is_shown_and_deleted_and_nothing_else(site: Dashboard) -> None:
    # A browser takes these two out of a path, and asks for what is left of it.
    api = Api(site.broker.ports["http"], "root:p")
    policy = {"pattern": "^x", "definition": {"max-length": 1}}
    for path in ("vhosts/dotted", "queues/dotted/..", "policies/dotted/..", "policies/dotted/."):
        api.put(path, policy if path.startswith("policies") else {})
    tab = site.page
    site.sign_in()
    for name in ("..", "."):
        row = (
            "[...document.querySelectorAll('tbody tr')].find((each) =>"
            f" each.cells[0].textContent.trim() === '{name}')"
        )
        site.visit("policies", waits_for=row)
        tab.run(f"[...{row}.querySelectorAll('button')].at(-1).click()")
        tab.wait("document.querySelector('dialog[open]')")
        tab.run("document.querySelector('dialog [type=submit]').click()")
        tab.wait(f"!{row}")
    site.visit("queues", "dotted", "..", waits_for=f"{button('Delete')}?.disabled === false")
    tab.run(f"{button('Delete')}.click()")
    tab.wait("document.activeElement.name === 'name'")
    tab.type("..")
    tab.press("Enter")
    tab.wait("document.querySelector('h1')?.textContent === 'Queues'")
    site.visit("vhosts", "dotted", waits_for="document.querySelector('h1')")
    tab.wait("document.querySelector('h1').textContent.includes('dotted')")
    assert tab.troubles == []


def test_lists_are_searched_sorted_and_cut_into_pages(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("queues", waits_for="document.querySelectorAll('tbody tr').length >= 6")
    tab.run("document.querySelector('input[type=search]').focus()")
    tab.type("SESSION")
    tab.wait("document.querySelectorAll('tbody tr').length === 2")
    tab.wait("location.hash.includes('name=SESSION')")
    tab.wait("document.querySelector('.total').textContent.includes(' of ')")
    tab.run("document.querySelector('th:nth-child(5) button').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('th[aria-sort=descending]')?.textContent.startsWith('Ready')")
    tab.wait(
        "((found) => found.every((one, at) => !at || found[at - 1] >= one))"
        "([...document.querySelectorAll('tbody tr')].map((row) =>"
        " Number(row.cells[4].textContent.replace(/\\D/g, ''))))"
    )
    assert tab.run("document.activeElement.closest('th') !== null"), "the focus stays"
    # The address leads to the same rows.
    tab.reload()
    tab.wait("document.querySelector('input[type=search]')?.value === 'SESSION'")
    tab.wait("document.querySelector('th[aria-sort=descending]')")
    site.check("queues-found")


def test_what_a_user_may_not_is_not_offered(site: Dashboard) -> None:
    tab = site.page
    site.sign_in("watcher")
    site.visit("connections", waits_for="document.querySelectorAll('tbody tr').length >= 4")
    tab.click("tbody tr:nth-child(1) a")
    tab.wait("document.querySelectorAll('.figure').length > 3")
    assert tab.run(f"{button('Close')} === undefined")
    site.visit("node", waits_for="document.querySelectorAll('tbody').length >= 3")
    assert "Listeners" in tab.text()
    site.sign_in("plain")
    site.visit("connections", waits_for="document.querySelector('.empty:not([hidden])')")
    site.visit("node", waits_for="document.querySelectorAll('tbody').length >= 2")
    assert "Listeners" not in tab.text()
    assert tab.troubles == []


def test_a_connection_is_closed(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    parameters = pika.ConnectionParameters(
        LOOPBACK, site.broker.ports["amqp"], client_properties={"connection_name": "visitor"}
    )
    made = pika.BlockingConnection(parameters)
    try:
        row = (
            "[...document.querySelectorAll('tbody tr')].find((each) =>"
            " each.cells[1].textContent === 'visitor')"
        )
        site.visit("connections", waits_for=row)
        tab.run(f"{row}.querySelector('a').click()")
        tab.wait(button("Close"))
        tab.run(f"{button('Close')}.click()")
        tab.wait("document.activeElement.name === 'reason'")
        tab.type("good night")
        tab.press("Enter")
        with pytest.raises(ConnectionClosedByBroker, match="good night"):
            made.process_data_events(20)
    finally:
        if made.is_open:
            made.close()
    tab.wait("document.querySelector('h1').textContent === 'Connections'")
    assert tab.troubles == []


def test_colours_and_virtual_host_are_chosen_and_remembered(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    back = "getComputedStyle(document.documentElement).backgroundColor"
    light = tab.run(back)
    tab.run("document.querySelector('#theme').value = 'dark'")
    tab.run("document.querySelector('#theme').dispatchEvent(new Event('change'))")
    assert tab.run(back) != light
    site.visit("queues", waits_for="document.querySelector('tbody tr')")
    assert "Virtual host" in tab.run("document.querySelector('thead').innerText")
    tab.run("document.querySelector('#vhost').value = '/'")
    tab.run("document.querySelector('#vhost').dispatchEvent(new Event('change'))")
    tab.wait("!document.querySelector('thead').innerText.includes('Virtual host')")
    tab.reload()
    tab.wait("document.querySelector('#vhost')?.value === '/'")
    assert tab.run(back) != light
    for name in ("theme", "vhost"):
        tab.run(f"document.querySelector('#{name}').value = ''")
        tab.run(f"document.querySelector('#{name}').dispatchEvent(new Event('change'))")
    assert tab.run(back) == light


def test_the_keyboard_finds_its_way(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("overview")
    tab.run("document.activeElement.blur()")
    tab.open(site.url + "?again#/overview")
    tab.wait("document.querySelector('.figure')")
    tab.press("Tab")
    assert tab.run("document.activeElement.textContent") == "Skip to the content"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert tab.run(outline) == "solid"
    tab.press("Enter")
    assert tab.run("document.activeElement.id") == "main"
    # A page that is new has the focus; what is said of it is its title.
    site.visit("queues", waits_for="document.querySelector('tbody tr')")
    assert tab.run("document.activeElement.id") == "main"
    assert tab.run("document.querySelector('#announcements').textContent") == "Queues – Trivium"
    # On a phone the menu is closed by Escape, and by going somewhere.
    tab.look(390, 844)
    tab.wait("!document.querySelector('.menu[open]')")
    tab.run("document.querySelector('summary').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('.menu[open]')")
    site.picture("menu")
    tab.press("Escape")
    tab.wait("!document.querySelector('.menu[open]')")
    assert tab.run("document.activeElement.tagName") == "SUMMARY"
    tab.look()


def test_a_session_that_is_over_leads_to_signing_in(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("queues", waits_for="document.querySelector('tbody tr')")
    tab.run("fetch('api/v1/session', {method: 'DELETE', headers: {'Trivium-Page': '1'}})")
    tab.wait("document.querySelector('.sign-in')")
    assert "signed out" in tab.text()
    tab.troubles.clear()


def test_a_group_goes_on_elsewhere(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    with open_client(site.broker.ports["native"]) as client:
        client.declare_stream("quiet", 2)
        publication = Publication(payload=b"x", routing_key="quiet", exchange="")
        client.publish_batch([publication] * 10)
        client.commit("late", "quiet", {0: 0, 1: 0})
    site.visit("groups", "/", "late", waits_for="document.querySelector('.figure')")
    lag = "document.querySelector('.figure b').textContent"
    tab.wait(f"{lag} === '10'")
    tab.run(f"{button('Reset offsets')}.click()")
    tab.wait("document.querySelector('dialog[open]')")
    tab.run("document.querySelector('[name=where]').value = 'next'")
    tab.run("document.querySelector('dialog [type=submit]').click()")
    tab.wait(f"{lag} === '0'")
    tab.wait("!document.querySelector('dialog')")
    tab.run(f"{button('Delete')}.click()")
    tab.wait("document.activeElement.name === 'name'")
    tab.type("late")
    tab.press("Enter")
    tab.wait("document.querySelector('h1').textContent === 'Groups'")
    assert tab.troubles == []


def test_under_tls_the_cookie_goes_nowhere_else(tmp_path: Path) -> None:
    found = Site(tmp_path, "interpreted", users() | {"TRIVIUM_TLS__CLIENT_CERTIFICATES": "off"})
    try:
        with page(tmp_path / "profile", trust(tmp_path / "server.pem")) as tab:
            dashboard = Dashboard(found.process, tab, "https")
            dashboard.sign_in()
            (cookie,) = tab.call("Network.getCookies")["cookies"]
            assert cookie["name"] == f"__Host-trivium-session-{found.port('https')}"
            assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
                True,
                True,
                "Strict",
            )
            tab.wait("document.querySelector('.charts')")
            assert tab.troubles == []
    finally:
        found.close()


def test_what_is_wrong_with_the_broker_or_a_page_is_said(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("queues", "/", "there is none", waits_for="document.querySelector('h1')")
    tab.wait("document.querySelector('h1').textContent === 'There is no such thing'")
    assert "no queue 'there is none'" in tab.text()
    tab.troubles.clear()
    tab.call("Network.setBlockedURLs", urls=["*/api/v1/*"])
    site.visit("queues")
    tab.wait("document.querySelector('.banner').textContent.includes('does not answer')")
    # Live figures, which go on, say nothing else.
    tab.run("new Promise((done) => setTimeout(done, 1500))")
    assert tab.run("document.querySelector('.banner').hidden") is False
    tab.call("Network.setBlockedURLs", urls=[])
    tab.wait("document.querySelector('.banner').hidden && document.querySelector('tbody tr')")
    tab.troubles.clear()


def test_what_was_wrong_on_a_page_and_its_windows_go_with_it(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    site.visit("retained", waits_for=button("Tree anew"))
    tab.call("Network.setBlockedURLs", urls=["*/retained-levels*"])
    tab.run(f"{button('Tree anew')}.click()")
    tab.wait("document.querySelector('.notice.bad')")
    tab.call("Network.setBlockedURLs", urls=[])
    tab.troubles.clear()
    site.visit("queues", waits_for=button("New queue"))
    assert tab.run("document.querySelector('.notice')") is None
    tab.run(f"{button('New queue')}.click()")
    tab.wait("document.querySelector('dialog[open]')")
    tab.run("history.back()")
    tab.wait("document.querySelector('h1').textContent === 'Retained messages'")
    tab.wait("!document.querySelector('dialog')")
    assert tab.run("document.activeElement.id") == "main"


def test_what_is_shown_anew_leaves_the_focus_where_it_is(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    link = (
        "[...document.querySelectorAll('tbody a')].find((each) => each.textContent === 'billing')"
    )
    site.visit("streams", "/", STREAMS[0], waits_for=link)
    tab.run(f"(window.before = {link}).focus()")
    tab.wait("!window.before.isConnected")
    assert tab.run("document.activeElement.textContent") == "billing"


#: words of figures that stand in two lines
BROKEN = """[...document.querySelectorAll('.figure span')].flatMap((each) =>
    [...each.textContent.matchAll(/[a-z]+/g)].filter((word) => {
        const range = document.createRange();
        range.setStart(each.firstChild, word.index);
        range.setEnd(each.firstChild, word.index + word[0].length);
        return new Set([...range.getClientRects()].map((line) => line.top)).size > 1;
    }).map(String))"""


def test_on_a_phone_no_figure_breaks_a_word(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    for names in (("overview",), ("queues", "/", "orders"), ("sessions", "/", "sensor")):
        site.visit(*names, waits_for="document.querySelectorAll('.figure').length >= 6")
        tab.look(PHONE, 844)
        assert tab.run(BROKEN) == [], names
        tab.look()


def test_no_figure_stands_alone_in_its_row(site: Dashboard) -> None:
    tab = site.page
    site.sign_in()
    rows = (
        "Object.values(Object.groupBy([...document.querySelectorAll('.figures > *')],"
        " (each) => each.offsetTop)).map((row) => row.length)"
    )
    for names in (("overview",), ("queues", "/", "orders")):
        site.visit(*names, waits_for="document.querySelectorAll('.figure').length >= 8")
        for width in (375, 768, 1024, 1280, 1920):
            tab.look(width)
            found = tab.run(rows)
            assert min(found) > 1, (names, width, found)
            assert max(found) - min(found) <= 1 or width < 600, (names, width, found)
    tab.look()
