"""Models: what is taken and shown, said once.

A model is a frozen dataclass. From its types come the JSON of an object, the check of a body, and
the schema that both follow (JSON Schema 2020-12, as OpenAPI 3.1 has it). ``Annotated`` types say
more of a value by ``About``. A field with a default may be left out of a body; what is shown has
all fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from trivium.management.endpoints import BadRequest
from trivium.management.listing import value_at
from trivium.management.values import MAX_DEPTH, Later, check_value, checked

#: Where schemas of models stand in the document.
SCHEMAS: Final = "#/components/schemas/"
#: Bounds of whole numbers that nothing else bounds: 64 bits.
MOST: Final = (1 << 63) - 1
#: Bytes of a name, as on all protocols.
MAX_NAME: Final = 255

Model = TypeVar("Model")


class Unprocessable(BadRequest):
    """A body is JSON and not what is asked for (RFC 9110, 15.5.21)."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "invalid_body")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a type alone does not say of a value."""

    text: str = ""
    #: of a number
    least: int | None = None
    most: int | None = None
    #: characters of a text, or items of a list
    shortest: int | None = None
    longest: int | None = None
    pattern: str | None = None
    #: of what is not to be shown, nor to be seen by others
    is_secret: bool = False

    def schema(self) -> dict[str, object]:
        """The same as keywords."""
        found: dict[str, object] = {"description": self.text} if self.text else {}
        return {**found, "format": "password"} if self.is_secret else found


#: A name of something.
Name = Annotated[str, About(shortest=1, longest=MAX_NAME)]
#: How many there are.
Count = Annotated[int, About(least=0)]
#: Milliseconds since the epoch.
Time = Annotated[int, About(text="milliseconds since the epoch", least=0)]
#: How much something may have of what.
Limits = Annotated[
    dict[str, Annotated[int, About(least=-1, most=(1 << 53) - 1)]],
    About(text="by name, such as max-queues; -1 is no limit"),
]
#: Arguments or headers: any JSON whose numbers have 64 bits.
Table = dict[str, object]


@cache
def hints_of(model: type) -> dict[str, Any]:
    """The types of a model's fields, in their order."""
    found = get_type_hints(model, include_extras=True)
    return {field.name: found[field.name] for field in fields(model)}


@cache
def _names_of(model: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(model))


def shown_model(value: object) -> dict[str, object]:
    """What JSON shows of a model's object."""
    model: Any = type(value)
    return {name: _shown(getattr(value, name)) for name in _names_of(model)}


def shown_value(value: object, path: str) -> object:
    """What JSON shows of a model's object at a path of names; None for nothing."""
    first = path.partition(".")[0]
    model: Any = type(value)
    if value is None or first not in _names_of(model):
        return None
    return value_at({first: _shown(getattr(value, first))}, path)


def _shown(value: object) -> object:
    if value is None or isinstance(value, str | int | float | Later):
        return value
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _shown(item) for name, item in value.items()}
    return shown_model(value)


def paths_of(kind: Any) -> list[str]:
    """The paths of names to what JSON shows of a model's objects; those in tables go further."""
    model = _model_in(kind)
    if model is None:
        return []
    found = []
    for name, hint in hints_of(model).items():
        inner = paths_of(hint)
        found += [f"{name}.{path}" for path in inner] or [name]
    return found


def has_path(kind: Any, path: str) -> bool:
    """Whether something may stand at a path of names, or in a table there."""
    model = _model_in(kind)
    if model is None:
        return dict in (get_origin(each) for each in _kinds_in(kind))
    first, _, rest = path.partition(".")
    hint = hints_of(model).get(first)
    return hint is not None and (not rest or has_path(hint, rest))


def _kinds_in(kind: Any) -> list[Any]:
    """What a type may be, without what is said about it."""
    if get_origin(kind) is Annotated:
        return _kinds_in(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [each for inner in get_args(kind) for each in _kinds_in(inner)]
    return [kind]


def _model_in(kind: Any) -> type | None:
    found = [each for each in _kinds_in(kind) if isinstance(each, type) and is_dataclass(each)]
    return found[0] if found else None


# Bodies


def parse(model: type[Model], value: object) -> Model:
    """The object of a model that a body describes. Raises Unprocessable."""
    found: Model = _object(model, value, "the body")
    return found


def _object(model: type, value: object, what: str) -> Any:
    if not isinstance(value, dict):
        raise Unprocessable(f"{what} is an object")
    known = hints_of(model)
    for key in value:
        if key not in known:
            raise Unprocessable(f"{what} has an unknown field {key[:64]!r}")
    values: dict[str, object] = {}
    for field in fields(model):
        if field.name in value:
            kind = known[field.name]
            values[field.name] = taken(kind, value[field.name], repr(field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Unprocessable(f"{what} needs {field.name!r}")
    return model(**values)


def taken(kind: Any, value: object, what: str, about: About | None = None) -> object:
    """A value of a type. Raises Unprocessable."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *rest = get_args(kind)
        found = next((each for each in rest if isinstance(each, About)), about)
        return taken(inner, value, what, found)
    if origin in (Union, UnionType):
        return _one_of(kind, value, what, about)
    if origin is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise Unprocessable(f"{what} is one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is list and isinstance(value, list):
        (item,) = get_args(kind)
        _check_size(len(value), what, about, "item")
        return [taken(item, each, what) for each in value]
    if origin is dict and isinstance(value, dict):
        (_, item) = get_args(kind)
        return {checked(name, what): taken(item, each, what) for name, each in value.items()}
    if is_dataclass(kind):
        return _object(kind if isinstance(kind, type) else type(kind), value, what)
    return _plain(kind, value, what, about)


def _plain(kind: Any, value: object, what: str, about: About | None) -> object:
    if kind is object:
        check_value(value, what, MAX_DEPTH)
        return value
    if kind is str and isinstance(value, str):
        _check_size(len(value), what, about, "character")
        if about is not None and about.pattern is not None and not re.search(about.pattern, value):
            raise Unprocessable(f"{what} does not match {about.pattern}")
        return checked(value, what)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            # JSON has one type of numbers.
            value = int(value)
        if isinstance(value, int):
            least, most = _bounds(about)
            if not least <= value <= most:
                raise Unprocessable(f"{what} is from {least} to {most}")
            return value
    raise Unprocessable(f"{what} is {_called(kind)}")


def _one_of(kind: Any, value: object, what: str, about: About | None) -> object:
    if value is None and NoneType in get_args(kind):
        return None
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return taken(inner, value, what, about)


def _called(kind: Any) -> str:
    names = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object"}
    return names.get(get_origin(kind) or kind, "a list")


def _bounds(about: About | None) -> tuple[int, int]:
    least = -MOST if about is None or about.least is None else about.least
    return least, MOST if about is None or about.most is None else about.most


def _check_size(size: int, what: str, about: About | None, unit: str) -> None:
    if about is None:
        return
    if about.shortest is not None and size < about.shortest:
        raise Unprocessable(f"{what} has at least {_counted(about.shortest, unit)}")
    if about.longest is not None and size > about.longest:
        raise Unprocessable(f"{what} has at most {_counted(about.longest, unit)}")


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


# Schemas


def schema_of(kind: Any, about: About | None = None) -> dict[str, object]:
    """The schema of a type; a model stands elsewhere, and is referred to."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *rest = get_args(kind)
        found = next((each for each in rest if isinstance(each, About)), about)
        return schema_of(inner, found)
    said = {} if about is None else about.schema()
    if origin in (Union, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return {"anyOf": [schema_of(inner, about), {"type": "null"}], **said}
    if origin is Literal:
        return {"enum": list(get_args(kind)), **said}
    if origin is list:
        found_list = {"type": "array", "items": schema_of(get_args(kind)[0])}
        return {**found_list, **_sizes(about, "Items"), **said}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(get_args(kind)[1]), **said}
    if is_dataclass(kind):
        name = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        return {"$ref": SCHEMAS + name, **said}
    if kind is object:
        return said
    if kind is int:
        least, most = _bounds(about)
        return {"type": "integer", "minimum": least, "maximum": most, **said}
    if kind is str:
        pattern = {} if about is None or about.pattern is None else {"pattern": about.pattern}
        return {"type": "string", **_sizes(about, "Length"), **pattern, **said}
    return {"type": {bool: "boolean", float: "number"}[kind], **said}


def _sizes(about: About | None, what: str) -> dict[str, object]:
    found: dict[str, object] = {}
    if about is not None and about.shortest is not None:
        found[f"min{what}"] = about.shortest
    if about is not None and about.longest is not None:
        found[f"max{what}"] = about.longest
    return found


def model_schema(model: type) -> dict[str, object]:
    """The schema of a model."""
    required = [
        field.name
        for field in fields(model)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    found: dict[str, object] = {
        "type": "object",
        "description": " ".join((model.__doc__ or "").split()),
        "properties": {name: schema_of(kind) for name, kind in hints_of(model).items()},
        "additionalProperties": False,
    }
    return {**found, "required": required} if required else found


def models_in(kind: Any) -> list[type]:
    """The models that a type consists of, each before those that it refers to."""
    if isinstance(kind, type) and is_dataclass(kind):
        inner = [each for hint in hints_of(kind).values() for each in models_in(hint)]
        return [kind, *inner]
    return [each for part in get_args(kind) for each in models_in(part)]
