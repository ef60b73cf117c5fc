"""Generate requests that a schema allows, nearly allows and forbids, as a stranger with a token may send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

EDGES = [0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e-300, 1e300]
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "*", "\x00", "\ud800", "\U0001f600", "../..", "a" * 5000, "%00", "null"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.sampled_from(EDGES) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def like(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of about that form: mostly of the right type, in range or not."""
    if "$ref" in schema:
        return like(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of(*(like(one, definitions) for one in schema[key]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            required = {name: like(schema["properties"][name], definitions) for name in schema.get("required", ())}
            optional = {
                name: like(one, definitions) for name, one in schema["properties"].items() if name not in required
            }
            return st.fixed_dictionaries(required, optional=optional)
        case "object":
            return st.dictionaries(TEXTS, ANYTHING, max_size=3)
        case "array":
            return st.lists(like(schema.get("items", {}), definitions), max_size=3)
        case "integer":
            ends = [schema.get("minimum", 0), schema.get("maximum", 10)]
            return st.sampled_from([*ends, *(one for one in EDGES if isinstance(one, int))]) | st.integers(0, 5)
        case "number":
            ends = [schema.get("minimum", 0.5), schema.get("maximum", 2.0)]
            return st.sampled_from([*ends, *EDGES]) | st.floats(0.0, 10.0)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string":
            return TEXTS
        case _:
            return ANYTHING


def bodies(schema: Mapping[str, Any] | None, definitions: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    """Return request bodies as bytes."""
    values = ANYTHING if schema is None else like(schema, definitions) | ANYTHING
    return values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")) | st.binary(max_size=50)


def queries(parameters: list[dict[str, Any]], definitions: Mapping[str, Any]) -> st.SearchStrategy[dict[str, str]]:
    """Return query parameters by name."""
    known = {
        one["name"]: like(one["schema"], definitions).map(str) | TEXTS for one in parameters if one["in"] == "query"
    }
    return st.fixed_dictionaries({}, optional={**known, "unknown": TEXTS})
