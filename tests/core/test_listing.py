"""Lists as answers: filtered, sorted, cut into pages, and made a part at a time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rest import serve
from tests.support.server import Server
from tests.support.simulated import Host
from trivium.listen import ListenerConfig
from trivium.management import listing
from trivium.management.calls import Call
from trivium.management.endpoints import Endpoint
from trivium.management.listing import Listing, chosen, columns_of, only_columns
from trivium.management.rest.queues import VALUES
from trivium.management.state import ManagementState
from trivium.observability.api import ApiAnswer, ApiRefused, ApiRequest
from trivium.security.identity import Identity

NAMES = ["b", "B2", "a.x", "<script>", "ü"]


def call_with(query: dict[str, str]) -> Call:
    request = ApiRequest(
        method="GET",
        path=("things",),
        query=query,
        body=None,
        identity=Identity("root", frozenset(("administrator",))),
        address="",
        listener=ListenerConfig(protocol="http", address="127.0.0.1:0"),
    )
    endpoint = Endpoint("GET", "things", lambda _: None)
    broker = Server(host=Host()).broker
    state = ManagementState(broker)
    return Call(broker, state, request, endpoint, {}, lambda _: None, lambda _: None)


def described(name: str) -> dict[str, object]:
    return {"name": name, "size": len(name), "of": {"deep": {"rate": -len(name)}, "other": 1}}


def answer_of(names: list[str] | None = None, /, **query: Any) -> Any:
    names = NAMES if names is None else names
    found = Listing(call_with(query), names, described, lambda name: (name,)).answer()
    return json.loads(b"".join(found.parts or ()))


def names_of(answer: Any) -> list[str]:
    return [item["name"] for item in (answer if isinstance(answer, list) else answer["items"])]


def refusal_of(**query: str) -> ApiAnswer:
    with pytest.raises(ApiRefused) as refused:
        answer_of(**query)
    return refused.value.answer


def test_a_list_is_in_the_order_of_names() -> None:
    assert answer_of() == [described(name) for name in sorted(NAMES)]
    assert answer_of([]) == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"sort": "name", "sort_reverse": "true"}, ["ü", "b", "a.x", "B2", "<script>"]),
        ({"sort": "size"}, ["b", "ü", "B2", "a.x", "<script>"]),
        ({"sort": "of.deep.rate"}, ["<script>", "a.x", "B2", "b", "ü"]),
        ({"sort": "nothing"}, sorted(NAMES)),
        ({"sort": "of.deep.rate.x"}, sorted(NAMES)),
    ],
)
def test_it_is_sorted_by_any_field(query: dict[str, Any], names: list[str]) -> None:
    assert names_of(answer_of(**query)) == names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"name": "B"}, ["B2", "b"]),
        ({"name": "A.X"}, ["a.x"]),
        ({"name": "^B.?$", "use_regex": "true"}, ["B2", "b"]),
        ({"name": r"\d", "use_regex": "true"}, ["B2"]),
        # A class keeps its case, which tells it from its opposite.
        ({"name": r"^\D+$", "use_regex": "true"}, ["<script>", "a.x", "b", "ü"]),
        ({"name": "ript>"}, ["<script>"]),
        ({"name": "nothing"}, []),
    ],
)
def test_pages_are_filtered_by_name_whatever_its_case(
    query: dict[str, Any], names: list[str]
) -> None:
    found = answer_of(page="1", **query)
    assert names_of(found) == names
    assert found["filtered_count"] == found["item_count"] == len(names)
    assert found["total_count"] == len(NAMES)


def test_pages_say_where_they_are() -> None:
    every = [f"n{number:04}" for number in range(1203)]
    found = answer_of(every, page="3", page_size="500")
    items = found.pop("items")
    assert [item["name"] for item in items] == every[1000:]
    assert found == {
        "filtered_count": 1203,
        "item_count": 203,
        "page": 3,
        "page_count": 3,
        "page_size": 500,
        "total_count": 1203,
    }
    assert answer_of(every, page="1")["page_count"] == 13
    assert (
        names_of(answer_of(every, page="2", sort="name", sort_reverse="true"))
        == (every[::-1][100:200])
    )


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "x"}, "bad_request"),
        ({"page": "1", "page_size": ""}, "bad_request"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request"),
        ({"page": "1", "name": "n" * 129}, "bad_request"),
        ({"page": "2"}, "page_out_of_range"),
    ],
)
def test_a_page_that_cannot_be_is_refused(query: dict[str, Any], error: str) -> None:
    answer = refusal_of(**query)
    assert isinstance(answer.body, dict)
    assert (answer.status, answer.body["error"]) == (400, error)


@pytest.mark.parametrize("pattern", ["(a{9}){99}", "((x{5}){5}){5}", "a{1024}"])
def test_a_regular_expression_that_takes_long_is_refused(pattern: str) -> None:
    assert refusal_of(page="1", name=pattern, use_regex="true").status == 400


def test_columns_are_chosen_and_what_is_missing_is_left_out() -> None:
    found = answer_of(["ab"], columns="name,of.deep.rate,of.none,size.x,nothing")
    assert found == [{"name": "ab", "of": {"deep": {"rate": -2}}}]
    assert answer_of(["ab"], columns="of.none") == [{"of": {}}]
    assert answer_of(["ab"], columns="of.deep,of.deep.rate") == [{"of": {"deep": {"rate": -2}}}]


def test_a_list_is_made_in_parts_and_between_them_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += listing.SLICE_SECONDS / 10
            return self.now

    monkeypatch.setattr(listing, "time", Clock())
    described_since = [0]
    most = 0

    def describe(name: str) -> dict[str, object]:
        described_since[0] += 1
        return {"name": name}

    every = [f"n{number}" for number in range(1000)]
    listed = Listing(call_with({}), every, describe, lambda name: (name,)).answer()
    parts = []
    for part in listed.parts or ():
        parts.append(part)
        most = max(most, described_since[0])
        described_since[0] = 0
    assert names_of(json.loads(b"".join(parts))) == sorted(every)
    assert most <= 11
    # It takes its time before the first of them too.
    assert parts.count(b"") >= 1000 // listing.STEP // 10


def test_others_are_served_while_items_are_looked_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += listing.SLICE_SECONDS / 10
            return self.now

    monkeypatch.setattr(listing, "time", Clock())
    looked = [*[None] * 1000, "found"]
    found = Listing(call_with({}), looked, described, lambda name: (name,)).answer()
    parts = list(found.parts or ())
    assert names_of(json.loads(b"".join(parts))) == ["found"]
    assert parts.count(b"") >= 1000 // listing.STEP // 10


def test_a_column_that_is_null_is_there() -> None:
    found: dict[str, object] = {"none": None, "of": {"none": None}}
    assert chosen(found, columns_of({"columns": "none,of.none,missing"})) == found
    assert only_columns(call_with({"columns": "none"}), found) == {"none": None}
    assert only_columns(call_with({}), found) == found


def test_names_are_put_in_order_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += listing.SLICE_SECONDS
            return self.now

    monkeypatch.setattr(listing, "time", Clock())
    names = [f"n{number}" for number in range(3 * listing.RUN)]
    found = list(listing.ordered(names))
    assert [name for name in found if name is not None] == sorted(names)
    assert found.count(None) == 3 + -(-len(names) // listing.STEP)


def test_what_has_gone_meanwhile_is_left_out() -> None:
    gone = {"B2"}
    found = Listing(
        call_with({}),
        NAMES,
        lambda name: None if name in gone else {"name": name},
        lambda name: (name,),
    ).answer()
    assert names_of(json.loads(b"".join(found.parts or ()))) == ["<script>", "a.x", "b", "ü"]


async def test_queues_are_sorted_by_what_is_shown_of_them(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        for number in range(4):
            arguments: Any = {"x-queue-type": "quorum"} if number % 2 else {}
            vhost.declare_queue(f"q{number}", durable=True, arguments=arguments)
        for count, name in ((3, "q0"), (1, "q2"), (2, "q3")):
            messages = [{"key": name, "payload": "x" * 9 * count}] * count
            path = "vhosts/%2F/exchanges/amq.default/messages"
            assert (await site.ask("POST", path, json={"messages": messages}))[0] == 202
        body = {"pattern": "^q[12]$", "definition": {"max-length": 9}, "apply_to": "queues"}
        assert (await site.ask("PUT", "vhosts/%2F/policies/p", json=body))[0] in (201, 204)
        queue = vhost.queue("q0")
        assert queue.get() is not None
        for field, value in VALUES.items():
            status, found = await site.ask("GET", f"queues?sort={field}")
            assert status == 200
            shown = []
            for item in found["items"]:
                at: Any = item
                for name in field.split("."):
                    at = at[name]
                assert value((vhost, vhost.queue(item["name"]))) == at, field
                if isinstance(at, dict):
                    at = json.dumps(at, separators=(",", ":"))
                shown.append((at is not None, at if at is not None else 0))
            assert shown == sorted(shown), field


class Thing:
    """Something of which a list knows whether it is still there."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("query", [{}, {"sort_reverse": "true"}, {"sort": "size"}])
def test_a_long_list_lets_its_items_go_as_they_are_written(query: dict[str, str]) -> None:
    known = weakref.WeakSet[Thing]()

    def things() -> Iterator[Thing]:
        for number in range(5000):
            thing = Thing(f"{number:05}")
            known.add(thing)
            yield thing

    def describe(thing: Thing) -> dict[str, object]:
        return described(thing.name)

    found = Listing(call_with(query), things(), describe, lambda thing: (thing.name,)).answer()
    counts = [(len(part), len(known)) for part in found.parts or () if part]
    assert counts[0][1] > 4000
    assert counts[-1][1] < 50


async def test_bindings_of_one_source_or_destination_are_those_among_all(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        vhost = site.broker.vhost("/")
        for name in ("q", "r"):
            vhost.declare_queue(name)
            body = {"source": "amq.topic", "destination": name, "key": f"k.{name}"}
            assert (await site.ask("POST", "vhosts/%2F/bindings", json=body))[0] == 201
        path = "vhosts/%2F/bindings"

        async def ends(query: str) -> list[tuple[str, str]]:
            _, found = await site.ask("GET", path + query)
            return [(each["source"], each["destination"]) for each in found["items"]]

        every = await ends("")
        assert len(every) == 4
        for source in ("amq.topic", "amq.default", "none", None):
            for destination in ("q", "r", "none", None):
                named = "" if source == "amq.default" else source
                wanted = [
                    each
                    for each in every
                    if named in (None, each[0]) and destination in (None, each[1])
                ]
                asked = {"source": source, "destination": destination}
                given = "&".join(f"{key}={value}" for key, value in asked.items() if value)
                assert await ends(f"?{given}") == wanted, given
