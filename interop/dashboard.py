"""The dashboard in a browser, with a broker behind it that has work to do."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from interop.amqp import connection
from interop.brokers import LOOPBACK, TriviumProcess
from interop.chromium import Page, page
from interop.native import open_client
from trivium.config import EVERYTHING
from trivium_native.values import Publication

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
#: A name that is a program where somebody takes it for markup.
MARKUP = '<img src="x" onerror="window.taken=1"><script>window.taken=1</script>&amp;'
STREAMS = ("readings", f"{MARKUP} stream")
#: rules of the Web Content Accessibility Guidelines up to 2.2 AA, and good practice
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PHONE = 375
#: captions of tables that can be read by scrolling alone
TOO_WIDE = (
    "[...document.querySelectorAll('.scroll:has(table)')]"
    ".filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"
)
#: what the key Tab leads to, and how many such things of a page are looked at
STOPS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
MOST_STOPS = 80
#: what is wrong with where the focus is; "again" once it has been everywhere
STOP = """(() => {
    const now = document.activeElement;
    const dialog = document.querySelector('dialog');
    const before = window.stops.at(-1);
    // Some fields have several parts.
    if (now === before) return 'the same';
    if (now === document.body || window.stops.includes(now)) return 'again';
    if (before?.isConnected && !(before.compareDocumentPosition(now) & 4)) return 'again';
    window.stops.push(now);
    const what = now.outerHTML.slice(0, 200);
    const { width, height } = now.getBoundingClientRect();
    if (dialog && !dialog.contains(now)) return `outside of the window: ${what}`;
    if (!width || !height) return `not to be seen: ${what}`;
    // The first one has it by no key.
    if (window.stops.length === 1 || now.matches('.node')) return '';
    return getComputedStyle(now).outlineStyle === 'none' ? `no outline: ${what}` : '';
})()"""
#: what a user may who may change nothing
READING = {"/": {"configure": "", "write": "", "read": ".*"}}
#: seconds between two messages of a load
PACE = 0.02


def users() -> dict[str, str]:
    """The environment of a broker that has a user for each tag; all have the password `p`."""
    found = {}
    for name, tags in {
        "root": ["administrator"],
        "watcher": ["monitoring"],
        "keeper": ["policymaker"],
        "plain": ["management"],
        "reader": ["management"],
        "nobody": [],
    }.items():
        start = f"TRIVIUM_USERS__{name}__"
        found[f"{start}PASSWORD"] = "p"
        found[f"{start}TAGS"] = json.dumps(tags)
        found[f"{start}PERMISSIONS"] = json.dumps(READING if name == "reader" else EVERYTHING)
    return found


class Dashboard:
    """It in a browser, signed in or not."""

    def __init__(self, broker: TriviumProcess, tab: Page, scheme: str = "http") -> None:
        self.broker = broker
        self.page = tab
        self.url = f"{scheme}://{LOOPBACK}:{broker.ports[scheme]}/"
        tab.look()

    def sign_in(self, user: str = "root", password: str = "p") -> None:
        """Come in as a user, by the keyboard."""
        tab = self.page
        tab.troubles.clear()
        tab.open(self.url)
        tab.wait("document.querySelector('.sign-in, .side')")
        if not tab.run("!!document.querySelector('.sign-in')"):
            tab.run("[...document.querySelectorAll('.who button')].at(-1).click()")
            tab.wait("document.querySelector('.sign-in')")
        tab.wait("document.activeElement.name === 'user'")
        tab.type(user)
        tab.press("Tab")
        tab.type(password)
        tab.press("Enter")
        tab.wait("document.querySelector('.side')")
        assert tab.troubles == []

    def visit(self, *names: str, waits_for: str = "document.querySelector('main h1')") -> None:
        """Go to a page, and wait for what must be there."""
        path = "/".join(quote(name, safe="") for name in names)
        self.page.run(f"void (location.hash = {json.dumps('#/' + path)})")
        self.page.wait(waits_for)

    def fill(self, **values: str) -> None:
        """Put values into the fields of the window that is open, or of the page."""
        for name, value in values.items():
            self.page.run(
                "(() => { const place = document.querySelector('dialog') ?? document;"
                f" const field = place.querySelector('[name={name}]');"
                f" field.value = {json.dumps(value)};"
                " field.dispatchEvent(new Event('input', { bubbles: true }));"
                " field.dispatchEvent(new Event('change', { bubbles: true })); })()"
            )

    def press(self, text: str, within: str = "main") -> None:
        """Press the button of this text, in the window that is open or a part of the page."""
        place = (
            f"(document.querySelector('dialog') ?? document.querySelector({json.dumps(within)}))"
        )
        found = (
            f"[...{place}.querySelectorAll('button, a.button')].find("
            f"(each) => each.textContent === {json.dumps(text)} && !each.disabled)"
        )
        self.page.wait(found)
        self.page.run(f"{found}.click()")

    def wait_for_text(self, text: str, within: str = "main") -> None:
        """Wait until a text stands there."""
        place = f"document.querySelector({json.dumps(within)})"
        self.page.wait(f"{place}.textContent.includes({json.dumps(text)})")

    def check(self, name: str) -> None:
        """Look at the page in light, dark and on a phone; nothing may be wrong with any of it."""
        tab = self.page
        looks = {"light": (1280, 900), "dark": (1280, 900), "phone": (PHONE, 844)}
        for look, (width, height) in looks.items():
            tab.look(width, height, "dark" if look == "dark" else "light")
            tab.run("new Promise((done) => setTimeout(done, 100))")
            self.picture(f"{name}-{look}")
            self._check_access(f"{name}, {look}")
            if look == "light":
                self._check_keyboard(name)
            # Tables scroll by themselves, but on a phone; the page does not.
            wide = tab.run("document.documentElement.scrollWidth")
            assert wide <= width, f"{name}, {look}: {wide} pixels"
            if look == "phone":
                assert tab.run(TOO_WIDE) == [], name
        tab.look()
        assert tab.troubles == [], name
        self.check_text()

    def check_text(self) -> None:
        """No name has become markup."""
        tab = self.page
        assert tab.run("window.taken") is None
        assert tab.run("document.querySelector('img, iframe, body script, object, embed')") is None

    def picture(self, name: str) -> None:
        """A picture of what there is to see, where pictures are wanted."""
        folder = os.environ.get("TRIVIUM_PICTURES")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.picture(Path(folder) / f"{name}.png")

    def _check_access(self, what: str) -> None:
        tab = self.page
        if not tab.run("!!window.axe"):
            tab.run(AXE.read_text(encoding="utf-8") + ";0")
        only = json.dumps({"runOnly": RULES, "resultTypes": ["violations"]})
        found = tab.run(
            f"axe.run(document, {only}).then((all) => all.violations.map((each) =>"
            " `${each.id}: ${each.help}: ${each.nodes.map((n) => n.html.slice(0, 200))}`))"
        )
        assert not found, f"{what}: {found}"

    def _check_keyboard(self, name: str) -> None:
        """The key Tab leads to all that can be used, in order, and one sees where."""
        tab = self.page
        begin = (
            "(() => { window.stops = []; window.began = document.activeElement;"
            " const first = (document.querySelector('dialog') ?? document)"
            f".querySelector({json.dumps(STOPS)}); first.focus();"
            " return document.activeElement === first })()"
        )
        assert tab.run(begin), name
        reachable = (
            "[...(document.querySelector('dialog') ?? document)"
            f".querySelectorAll({json.dumps(STOPS)})]"
            ".filter((each) => each.checkVisibility() && !each.disabled).length"
        )
        least = tab.run(reachable)
        count = 0
        while count < MOST_STOPS and (found := tab.run(STOP)) != "again":
            assert found in ("", "the same"), f"{name}: {found}"
            count += found == ""
            tab.press("Tab")
        assert count >= min(least, tab.run(reachable), MOST_STOPS), f"{name}: {count} of {least}"
        tab.run("window.began.focus()")


class Load:
    """Clients of each road that do a little all the time; their queues have odd names."""

    def __init__(self, broker: TriviumProcess) -> None:
        self._ports = broker.ports
        self._is_over = threading.Event()
        self._faults: list[BaseException] = []
        self._ready = [threading.Event() for _ in range(3)]
        works = (self._amqp, self._mqtt, self._native)
        self._threads = [
            threading.Thread(target=self._run, args=(work, ready), daemon=True)
            for work, ready in zip(works, self._ready, strict=True)
        ]

    def start(self) -> None:
        """Begin, and wait until each has done something."""
        for thread in self._threads:
            thread.start()
        for ready in self._ready:
            assert ready.wait(30), self._faults

    def _run(self, work: Callable[[threading.Event], None], ready: threading.Event) -> None:
        try:
            work(ready)
        except BaseException as error:
            self._faults.append(error)

    def close(self) -> None:
        """End them. Raises what went wrong with one."""
        self._is_over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)
        for fault in self._faults:
            raise fault

    def _amqp(self, ready: threading.Event) -> None:
        """A queue that is consumed, one that only grows, and one whose name is markup."""
        with connection(self._ports["amqp"]) as made:
            channel = made.channel()
            for name in ("orders", "backlog", MARKUP):
                channel.queue_declare(name, durable=True, arguments={"x-max-length": 1000})
                channel.queue_bind(name, "amq.topic", f"shop.{name}")
            channel.queue_declare("short", arguments={"x-message-ttl": 1000})
            channel.basic_qos(prefetch_count=50)
            channel.basic_consume(
                "orders", lambda own, got, *_: own.basic_ack(got.delivery_tag or 0)
            )
            channel.basic_consume(MARKUP, lambda *_: None, consumer_tag=MARKUP)
            properties = pika.BasicProperties(
                content_type="application/json", headers={MARKUP: MARKUP}, delivery_mode=2
            )
            body = json.dumps({"text": MARKUP}).encode()
            while not self._is_over.wait(PACE):
                for name in ("orders", "backlog", MARKUP, "short"):
                    channel.basic_publish("", name, body, properties)
                made.process_data_events(0)
                ready.set()

    def _mqtt(self, ready: threading.Event) -> None:
        """A session, a client with an odd identifier, and retained messages."""
        clients = []
        for name in ("sensor", MARKUP):
            client = Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
            client.connect(LOOPBACK, self._ports["mqtt"])
            client.loop_start()
            client.subscribe([("plant/#", 1), ("$share/crew/plant/hall0/#", 1)])
            clients.append(client)
        clients[0].publish(f"plant/{MARKUP.replace('#', '')}", MARKUP, 1, retain=True)
        number = 0
        while not self._is_over.wait(PACE):
            number += 1
            topic = f"plant/hall{number % 3}/machine{number % 5}/temperature"
            clients[number % 2].publish(topic, str(20 + number % 7), 1, retain=True)
            ready.set()
        for client in clients:
            client.disconnect()
            client.loop_stop()

    def _native(self, ready: threading.Event) -> None:
        """Streams that grow, with a group that is behind."""
        with open_client(self._ports["native"]) as client:
            for name in STREAMS:
                client.declare_stream(name, 3)
                client.commit("billing", name, {0: 0, 1: 0})
                client.commit(MARKUP, name, {2: 0})
            while not self._is_over.wait(PACE):
                client.publish_batch(
                    [
                        Publication(payload=b'{"value": 21.5}', routing_key=name, exchange="")
                        for name in STREAMS
                    ]
                )
                ready.set()


@contextlib.contextmanager
def dashboard(folder: Path, **environment: str) -> Iterator[Dashboard]:
    """A dashboard with load behind it."""
    if not AXE.exists():
        pytest.skip("interop/node_modules is missing (./dev test installs it)")
    broker = TriviumProcess(
        folder,
        protocols=("mqtt", "amqp", "native", "http"),
        environment=users() | environment,
    )
    broker.start()
    load = Load(broker)
    try:
        try:
            load.start()
            with page(folder / "profile") as tab:
                yield Dashboard(broker, tab)
        finally:
            load.close()
    finally:
        code = broker.stop()
    assert code == 0
    broker.check_log()
