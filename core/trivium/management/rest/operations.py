"""Operations: endpoints that say of themselves what they take and show."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from trivium.errors import (
    AccessRefused,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    TopologyError,
)
from trivium.management.endpoints import ENTERED, BadRequest, Endpoint
from trivium.management.listing import MAX_NAME_LENGTH, MAX_PAGE_SIZE, InOrder, Listing, by_path
from trivium.management.rest.schema import (
    About,
    has_path,
    parse,
    paths_of,
    shown_model,
    shown_value,
    taken,
)
from trivium.observability.api import OWN, ApiAnswer, Refusal, refusal

if TYPE_CHECKING:
    from trivium.management.calls import Call

_Handler = Callable[["Call"], "ApiAnswer | None"]

Model = TypeVar("Model")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of the query. Its type is a text, ``bool``, ``int`` or one of some texts."""

    name: str
    kind: Any
    text: str


#: Those of each list.
PAGES: Final = (
    Parameter("page", Annotated[int, About(least=1, most=999_999_999)], "which page, from 1"),
    Parameter("page_size", Annotated[int, About(least=1, most=MAX_PAGE_SIZE)], "items of a page"),
    Parameter(
        "name",
        Annotated[str, About(longest=MAX_NAME_LENGTH)],
        "only what has this text in its name",
    ),
    Parameter("sort", Annotated[str, About(longest=MAX_NAME_LENGTH)], "a field to sort by"),
    Parameter("sort_reverse", bool, "from the largest down"),
)


#: Headers by which something is only made, or only changed.
CONDITIONS: Final = (
    Parameter("If-Match", Annotated[str, About(pattern=r"^\*$")], "only where it is there"),
    Parameter("If-None-Match", Annotated[str, About(pattern=r"^\*$")], "only where it is not"),
)


class NotAsExpected(BadRequest):
    """What is named is there and must not be, or the other way round (RFC 9110, 15.5.13)."""


def check_condition(call: Call, is_there: bool, what: str) -> None:
    """Raise NotAsExpected where the client wants it otherwise."""
    if call.request.must_exist not in (None, is_there):
        raise NotAsExpected(f"{what} exists already" if is_there else f"no {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Endpoint):
    """An endpoint of Trivium's own API."""

    #: what it does, in a few words
    summary: str
    #: of what it shows
    result: Any = None
    #: how it is written; of events, what each has as its data
    media: str = "application/json"
    #: whether that is one item of a list in pages
    is_list: bool = False
    #: of what it takes
    body: type | None = None
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    #: whether what the path names is there, where that may be a condition
    is_there: Callable[[Call], bool] | None = None
    #: when it is done
    statuses: tuple[int, ...] = (200,)

    @property
    def name(self) -> str:
        """It, among all others."""
        name = f"{self.handler.__module__.rpartition('.')[2]}_{self.handler.__name__}"
        # The list of all virtual hosts is made by the handler of that of one.
        return f"{name}_of_vhost" if name.endswith("_list_all") and "{" in self.path else name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of the query."""
        return (*PAGES, *self.query) if self.is_list else self.query

    def carry_out(self, call: Call) -> ApiAnswer | None:
        self._check(call)
        if self.is_there is not None:
            check_condition(call, self.is_there(call), "what the path names")
        return self.handler(call)

    def _check(self, call: Call) -> None:
        """Raise BadRequest for what the query cannot say."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name, value in call.request.query.items():
            if name not in known:
                raise BadRequest(f"there is no parameter {name[:64]!r}")
            _read(known[name], value)
        sort = call.request.query.get("sort", "")
        # Lists whose items have another name are sorted by that.
        if sort not in ("", "name") and not has_path(self.result, sort):
            names = ", ".join(paths_of(self.result))
            raise BadRequest(f"'sort' is a field, which {sort!r} is not: one of {names}")
        if call.request.body is not None and self.body is None and not self.is_raw:
            raise BadRequest("there is nothing for a body to say")

    def refusal_of(self, error: Exception) -> Refusal | None:
        if isinstance(error, NotFound):
            return refusal(404, "not_found", str(error))
        if isinstance(error, AccessRefused):
            return refusal(403, "access_refused", str(error))
        if isinstance(error, NotAsExpected):
            return refusal(412, "not_as_expected", str(error))
        if isinstance(error, BadRequest):
            return refusal(422 if error.error == "invalid_body" else 400, error.error, str(error))
        if isinstance(error, LimitExceeded):
            return refusal(409, "limit_reached", str(error))
        if isinstance(error, PreconditionFailed):
            return refusal(409, "precondition_failed", str(error))
        if isinstance(error, TopologyError):
            return refusal(409, "conflict", str(error))
        return None


def _read(parameter: Parameter, value: str) -> object:
    """What a parameter of the query says. Raises BadRequest."""
    kind = parameter.kind
    found: object = value
    if kind is bool:
        found = {"true": True, "false": False}.get(value, value)
    elif "int" in str(kind) and value.isascii() and value.removeprefix("-").isdigit():
        found = int(value[:20])
    try:
        return taken(kind, found, repr(parameter.name))
    except BadRequest as error:
        raise BadRequest(str(error)) from None


def asked(call: Call, parameter: Parameter, default: Any) -> Any:
    """What a parameter of the query says, or ``default``."""
    value = call.request.query.get(parameter.name)
    return default if value is None else _read(parameter, value)


def operation(
    method: str,
    path: str,
    handler: _Handler,
    summary: str,
    **more: Any,
) -> Operation:
    """An operation at a path behind ``/api/v1``."""
    return Operation(method, f"{OWN}/{path}", handler, summary=summary, **more)


def declared(
    noun: str,
    handlers: tuple[_Handler, _Handler, _Handler, _Handler],
    declaration: type,
    result: type,
    is_there: Callable[[Call], bool],
    query: tuple[Parameter, ...] = (),
) -> tuple[Operation, ...]:
    """The operations of what clients declare in virtual hosts, such as ``queue``: to list, show,
    declare and delete it, the last with a ``query``."""
    list_all, show, declare, delete = handlers
    every = f"vhosts/{{vhost}}/{noun}s"
    one = f"{every}/{{{noun}}}"
    plural, named = f"{noun.title()}s", f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    return (
        operation("GET", f"{noun}s", list_all, plural, result=result, is_list=True),
        operation(
            "GET", every, list_all, f"{plural} of a virtual host", result=result, is_list=True
        ),
        operation("GET", one, show, named.capitalize(), result=result),
        operation(
            "PUT",
            one,
            declare,
            f"Declare {named}",
            vhost=ENTERED,
            body=declaration,
            headers=CONDITIONS,
            is_there=is_there,
            statuses=(201, 204),
        ),
        operation(
            "DELETE",
            one,
            delete,
            f"Delete {named}",
            vhost=ENTERED,
            query=query,
            statuses=(204,),
        ),
    )


def body_of(call: Call, model: type[Model]) -> Model:
    """What the body says. Raises Unprocessable."""
    body = call.request.body
    return parse(model, {} if body is None else body)


def answer(model: object, status: int = 200) -> ApiAnswer:
    """Shows a model's object."""
    return ApiAnswer(status, shown_model(model))


def listed(
    call: Call,
    items: Iterable[Item | None],
    view: Callable[[Item], object],
    order: Callable[[Item], tuple[str, ...]],
    admits: Callable[[Item], bool] | None = None,
    in_order: Callable[[], Generator[None, None, InOrder[Item]]] | None = None,
    values: Mapping[str, Callable[[Item], object]] | None = None,
) -> ApiAnswer:
    """A page of a list. Where ``view`` says None an item is gone.

    ``values`` finds some of what is shown without ``view``, for lists that are sorted by it.
    """
    known = by_path(values or {})

    def describe(item: Item) -> dict[str, object] | None:
        found = view(item)
        return None if found is None else shown_model(found)

    def value_of(path: str) -> Callable[[Item], object]:
        return known(path) or (lambda item: shown_value(view(item), path))

    return Listing(call, items, describe, order, admits, True, in_order, value_of).answer()
