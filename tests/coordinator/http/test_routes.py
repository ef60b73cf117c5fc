"""Roles are ordered, and bodies take nothing else than what is asked for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from coordinator.http.routes import ACCESSES, Body, Caller, Query


def test_each_role_may_what_those_before_it_may() -> None:
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
