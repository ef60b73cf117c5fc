"""Generate the API's description, OpenAPI 3.1, from the routes."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from coordinator.http.routes import Answer, Call, JsonText, RawRoute, Route
from rollcast.runtime import finite_json
from rollcast.runtime.version import software_version

PATH = "/api/v1/openapi.json"
_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_PARAMETER = re.compile(r"{(\w+)}")
_ERROR = {
    "type": "object",
    "description": "An error: what happened, why, and what to do. docs/errors.md has a section for each code.",
    "properties": {name: {"type": "string"} for name in ("code", "what", "cause", "fix")},
    "required": ["code", "what", "cause", "fix"],
}


def description_route(routes: Sequence[Route | RawRoute]) -> Route:
    """Return the route that serves the description of all routes and of itself.

    The description is made when it is first requested, in a thread: it takes a third of a second, most of what a
    coordinator needs to start.
    """

    described = list(routes)

    @functools.cache
    def text() -> JsonText:
        return JsonText(finite_json.dumps(description(described)))

    async def serve(_call: Call) -> Answer:
        return await asyncio.to_thread(text)

    own = Route("GET", PATH, "viewer", serve, "Return this description.")
    described.append(own)
    return own


def description(routes: Sequence[Route | RawRoute]) -> dict[str, Any]:
    """Return an OpenAPI document as plain data.

    Raises:
        ValueError: two routes have the same method and path.
    """
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        methods = paths.setdefault(route.path, {})
        if route.method.lower() in methods:
            raise ValueError(f"two routes have the method and path {route.method} {route.path}")
        methods[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rollcast",
            "version": software_version(),
            "description": "The state of one run, and the operator's actions on it.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route | RawRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "x-rollcast-access": route.access,
        "security": [] if route.access == "anyone" else [{"token": []}],
        "parameters": [_path_parameter(name) for name in _PARAMETER.findall(route.path)],
        "responses": {
            "200": {"description": "Success.", "content": {_content_type(route): {"schema": _answer(route, schemas)}}},
            "default": {
                "description": "An error.",
                "content": {_JSON: {"schema": {"$ref": _REF.format(model="Error")}}},
            },
        },
    }
    if isinstance(route, Route):
        if route.query is not None:
            operation["parameters"] += _query_parameters(_model(route.query, schemas, keep=False))
        if route.body is not None:
            schema = _model(route.body, schemas)
            operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    return operation


def _operation_id(route: Route | RawRoute) -> str:
    words = re.sub(r"\W+", "_", route.path.removeprefix("/api/v1")).strip("_")
    return f"{route.method.lower()}_{words}"


def _content_type(route: Route | RawRoute) -> str:
    return route.content_type if isinstance(route, RawRoute) else _JSON


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": one}
        for name, one in schema.get("properties", {}).items()
    ]


def _answer(route: Route | RawRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    if isinstance(route, RawRoute):
        return {} if route.content_type == _JSON else {"type": "string"}
    schema = TypeAdapter(route.answer).json_schema(mode="serialization", ref_template=_REF)
    _take_definitions(schema, schemas)
    return schema


def _model(model: type[BaseModel], schemas: dict[str, Any], *, keep: bool = True) -> dict[str, Any]:
    """Return a model's schema, or with ``keep`` a reference to it."""
    _, top = models_json_schema([(model, "validation")], ref_template=_REF)
    _take_definitions(top, schemas)
    if keep:
        return {"$ref": _REF.format(model=model.__name__)}
    schema: dict[str, Any] = schemas.pop(model.__name__)
    return schema


def _take_definitions(schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move shared definitions to the document's schemas.

    Raises:
        ValueError: two different schemas have the same name.
    """
    for name, one in schema.pop("$defs", {}).items():
        if schemas.setdefault(name, one) != one:
            raise ValueError(f"two different schemas are called {name}")
