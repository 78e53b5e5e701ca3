"""Definitions: all that was declared and granted, as one document, in the form of RabbitMQ's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from trivium.management.compatible.definitions import MAX_NOTES, Import, get_all, get_of_vhost
from trivium.management.endpoints import ADMINISTRATORS, LARGE, MANY_VALUES
from trivium.management.rest.operations import Parameter, answer, asked, operation
from trivium.management.rest.schema import About, Table
from trivium.observability.api import ApiAnswer

if TYPE_CHECKING:
    from trivium.management.calls import Call


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has come to."""

    passed_over: Annotated[
        list[str],
        About(text="what means nothing here or cannot be, and why", longest=MAX_NOTES + 1),
    ]
    taken: Annotated[int, About(text="entries that are carried out, or were so already", least=0)]


_SKIP: Final = Parameter("skip", bool, "go on behind what cannot be; else that ends the import")


def export(call: Call) -> ApiAnswer:
    """All of them."""
    return get_all(call)


def export_of_vhost(call: Call) -> ApiAnswer:
    """Those of a virtual host."""
    return get_of_vhost(call)


def take(call: Call) -> None:
    """Import some; what is there already must be the same."""
    _take(call, None)


def take_of_vhost(call: Call) -> None:
    """Import some into a virtual host, whatever theirs was."""
    _take(call, call.vhost.name)


def _take(call: Call, vhost: str | None) -> None:
    def done(notes: list[str]) -> None:
        call.answer_durably(answer(Imported(notes, work.taken)))

    work = Import(call, vhost, done, asked(call, _SKIP, False))
    work.go_on()


_IN: Final = "vhosts/{vhost}/definitions"
_TAKE: Final = {
    "body": Table,
    "query": (_SKIP,),
    "result": Imported,
    "tags": ADMINISTRATORS,
    "most_bytes": LARGE,
    "most_values": MANY_VALUES,
}

ENDPOINTS: Final = (
    operation(
        "GET", "definitions", export, "Export definitions", tags=ADMINISTRATORS, result=Table
    ),
    operation("POST", "definitions", take, "Import definitions", **_TAKE),
    operation(
        "GET",
        _IN,
        export_of_vhost,
        "Export those of a virtual host",
        tags=ADMINISTRATORS,
        result=Table,
    ),
    operation("POST", _IN, take_of_vhost, "Import some into a virtual host", **_TAKE),
)
