"""Test that the API's description is valid OpenAPI 3.1, that answers match it, and that routes refuse other input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import ValidationError

from coordinator.http.openapi import PATH, description
from coordinator.http.routes import ACCESSES, Answer, Body, Call, Caller, Query, RawRoute, Route
from tests.coordinator.http.serving import KEY, served

TOKENS = "/api/v1/tokens"


def test_contradictory_routes_are_refused() -> None:
    async def nothing(_call: Call) -> Answer:
        return {}

    route = Route("GET", "/a", "viewer", nothing, "A.")
    with pytest.raises(ValueError, match="two routes"):
        description([route, route])

    def posting(path: str, kind: type) -> Route:
        model = type("Same", (Body,), {"__annotations__": {"a": kind}})
        return Route("POST", path, "viewer", nothing, "A.", body=model)

    description([posting("/a", int), posting("/b", int)])
    with pytest.raises(ValueError, match="Same"):
        description([posting("/a", int), posting("/b", str)])


async def test_description_is_valid_and_names_every_route(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        _, document = await page.get(PATH)
        OpenAPIV31SpecValidator(document).validate()
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        assert described == {(route.method, route.path) for route in page.app.routes}
        for route in page.app.routes:
            operation = document["paths"][route.path][route.method.lower()]
            assert operation["x-rollcast-access"] == route.access
            assert bool(operation["security"]) == (route.access != "anyone")
            assert operation["summary"].endswith(".")


async def test_answers_conform(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        _, document = await page.get(PATH)
        made = await page.post(TOKENS, {"name": "ann", "access": "viewer", "days": 1})
        check(document, "POST", TOKENS, made)
        revoke = TOKENS + "/{id}/revoke"
        check(document, "POST", revoke, await page.post(revoke.format(id=made[1]["id"]), {}))
        for route in page.app.routes:
            if isinstance(route, Route) and route.method == "GET":
                check(document, "GET", route.path, await page.get(route.path, KEY))
        check(document, "POST", TOKENS, await page.post(TOKENS, {"name": "?"}))
        check(document, "POST", TOKENS, await page.post(TOKENS, {}, None))


def check(document: dict[str, Any], method: str, path: str, said: tuple[int, Any]) -> None:
    """Check that an answer matches the description."""
    status, answer = said
    responses = document["paths"][path][method.lower()]["responses"]
    schema = responses.get(str(status), responses["default"])["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer)


async def test_raw_routes_have_a_content_type(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        _, document = await page.get(PATH)
        for route in page.app.routes:
            if isinstance(route, RawRoute):
                content = document["paths"][route.path][route.method.lower()]["responses"]["200"]["content"]
                assert list(content) == [route.content_type]


def test_each_role_includes_the_roles_before_it() -> None:
    for place, access in enumerate(ACCESSES):
        caller = Caller("x", access)
        assert [caller.may(needed) for needed in ACCESSES] == [place >= other for other in range(len(ACCESSES))]


def test_bodies_are_strict_and_queries_are_texts() -> None:
    class Some(Body):
        count: int

    class Asked(Query):
        limit: int = 5

    assert Some.model_validate_json('{"count": 1}').count == 1
    for text in ('{"count": "1"}', '{"count": 1, "more": 2}', "[]"):
        with pytest.raises(ValidationError):
            Some.model_validate_json(text)
    assert Asked.model_validate({"limit": "7"}).limit == 7
