"""The dashboard in Chromium: each page with load behind it, dark, light and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.dashboard import MARKUP, NOT_SIGNED_IN, Dashboard, dashboard

pytestmark = [pytest.mark.one_build, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("dashboard")) as found:
        yield found


def test_signing_in_and_out(site: Dashboard) -> None:
    tab = site.page
    tab.open(site.url)
    tab.wait("document.querySelector('.sign-in')")
    tab.troubles = [each for each in tab.troubles if NOT_SIGNED_IN not in each]
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
