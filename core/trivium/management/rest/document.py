"""The OpenAPI 3.1 document, made of the operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from trivium import __version__
from trivium.management.endpoints import (
    ADMINISTRATORS,
    ANYBODY,
    CLIENTS,
    POLICIES,
    WATCHERS,
    Endpoint,
)
from trivium.management.rest.operations import CONDITIONS
from trivium.management.rest.schema import SCHEMAS, Count, model_schema, models_in, schema_of
from trivium.management.segments import DOTS
from trivium.management.values import encode

if TYPE_CHECKING:
    from trivium.management.rest.operations import Operation, Parameter

_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; `items` are beside these."""

    page: Count
    page_size: Count
    page_count: Count
    item_count: Count
    filtered_count: Count
    total_count: Count


def document(operations: Iterable[Operation]) -> Iterator[bytes]:
    """The document of these operations as JSON, in parts of which each takes a moment to make."""
    paths: dict[str, list[Operation]] = {}
    models: dict[str, type] = {Problem.__name__: Problem}
    for each in operations:
        paths.setdefault(f"/api/{each.path}", []).append(each)
        for kind in (each.body, each.result):
            models.update((model.__name__, model) for model in models_in(kind))
    yield encode(_HEAD)[:-1] + b',"paths":{'
    between = b""
    for path, found in paths.items():
        described = {each.method.lower(): _described(each) for each in found}
        yield between + encode({path: described})[1:-1]
        between = b","
    yield b'},"components":{"securitySchemes":' + encode(_SCHEMES) + b',"schemas":{'
    between = b""
    for name, model in sorted(models.items()):
        yield between + encode({name: model_schema(model)})[1:-1]
        between = b","
    yield b"}}}"


_HEAD: Final = {
    "openapi": "3.1.0",
    "info": {
        "title": "Trivium",
        "version": __version__,
        "description": "Everything that an operator of this broker sees and does.",
        "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
    },
    "servers": [{"url": "/"}],
    "security": [{"basic": []}, {"bearer": []}],
}
_SCHEMES: Final = {
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
}


def _described(each: Operation) -> dict[str, object]:
    found: dict[str, object] = {
        "operationId": each.name,
        "tags": [each.name.partition("_")[0]],
        "summary": each.summary,
        "description": _tags_of(each),
        "parameters": [
            *map(_path_parameter, _names(each.path)),
            *[_parameter(found, "query") for found in each.parameters],
            *[_parameter(found, "header") for found in each.headers],
        ],
        "responses": {
            **{str(status): _done(each, status) for status in each.statuses},
            **_problems(each),
        },
    }
    if not each.tags:
        found["security"] = []
    if each.is_raw:
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    if each.body is not None:
        content = {_JSON: {"schema": schema_of(each.body)}}
        # A POST says what it is in any case, for which there is a body.
        is_required = each.method == "POST" or not _is_optional(each.body)
        found["requestBody"] = {"required": is_required, "content": content}
    return found


def _is_optional(body: type) -> bool:
    return "required" not in model_schema(body)


def _tags_of(each: Endpoint) -> str:
    if each.tags == ANYBODY:
        return "Anybody may ask."
    if each.tags == CLIENTS:
        return "Any user may, and whoever the listener admits without credentials."
    names = {ADMINISTRATORS: "administrator", POLICIES: "policymaker", WATCHERS: "monitoring"}
    return f"The tag `{names.get(each.tags, 'management')}` is needed, or one above it."


def _names(path: str) -> list[str]:
    return re.findall(r"{([^}]*)}", path)


def _path_parameter(name: str) -> dict[str, object]:
    # Clients that make paths of it would ask for another path.
    schema = {"type": "string", "minLength": 1, "not": {"enum": list(DOTS)}}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(parameter: Parameter, place: str) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": place,
        "description": parameter.text,
        "schema": schema_of(parameter.kind),
    }


def _done(each: Operation, status: int) -> dict[str, object]:
    found: dict[str, object] = {"description": HTTPStatus(status).phrase}
    if status == HTTPStatus.NO_CONTENT or each.result is None:
        return found
    schema = schema_of(each.result)
    if each.is_list:
        schema = _page_of(schema)
    if each.media != _JSON:
        # A schema is of the whole text, which is no JSON.
        found["description"] = f"Events with data as {schema.get('$ref')} says"
        schema = {"type": "string"}
    return {**found, "content": {each.media: {"schema": schema}}}


@cache
def _page() -> dict[str, object]:
    return model_schema(Page)


def _page_of(schema: dict[str, object]) -> dict[str, object]:
    page = _page()
    properties = page["properties"]
    required = page["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    return {
        **page,
        "properties": {"items": {"type": "array", "items": schema}, **properties},
        "required": ["items", *required],
    }


def _problems(each: Operation) -> dict[str, object]:
    """What else may be answered: the usual ones by themselves."""
    statuses = [HTTPStatus.BAD_REQUEST]
    if each.tags:
        statuses += [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN]
    if "{" in each.path or each.is_list:
        statuses.append(HTTPStatus.NOT_FOUND)
    if each.method != "GET":
        statuses.append(HTTPStatus.CONFLICT)
    if each.headers == CONDITIONS:
        statuses.append(HTTPStatus.PRECONDITION_FAILED)
    if each.body is not None or each.is_raw:
        statuses += [HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNPROCESSABLE_ENTITY]
    content = {"application/problem+json": {"schema": {"$ref": SCHEMAS + Problem.__name__}}}
    found: dict[str, object] = {
        str(int(status)): {"description": status.phrase, "content": content} for status in statuses
    }
    found["default"] = {"description": "Refused", "content": content}
    return found
