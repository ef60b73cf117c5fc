"""Encode plain values as JSON, and objects as numbers. Copied into sandboxes, so it imports nothing of Rollcast.

Only exact built-in types count as plain: an object of a class that pretends to be a number or a text stays an object,
whose comparisons decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LINE_BYTES_MAX = 4 << 20
_ATOMS = (type(None), bool, str)
_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, number_of: Callable[[Any], int]) -> list[Any]:
    """Return a value as JSON.

    Args:
        number_of: returns the number of an object that is not plain, or raises TypeError.
    """
    kind = type(value)
    if kind in _ATOMS:
        return ["atom", value]
    if kind in (int, float, complex):
        return [kind.__name__, repr(value)]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return [kind.__name__, [encode(one, number_of) for one in value]]
    if kind is dict:
        return ["dict", [[encode(key, number_of), encode(one, number_of)] for key, one in value.items()]]
    return ["object", number_of(value)]


def decode(data: Any, object_of: Callable[[int], Any]) -> Any:
    """Return the value that JSON stands for.

    Args:
        object_of: returns the object of a number.

    Raises:
        ValueError, TypeError: the data are none of ours.
    """
    kind, content = data
    if kind == "atom":
        if type(content) not in _ATOMS:
            raise ValueError("no plain value")
        return content
    if kind in ("int", "float", "complex"):
        return {"int": int, "float": float, "complex": complex}[kind](str(content))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "bytearray":
        return bytearray.fromhex(content)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(one, object_of) for one in content)
    if kind == "dict":
        return {decode(key, object_of): decode(one, object_of) for key, one in content}
    if kind == "object":
        return object_of(int(content))
    raise ValueError("no kind of value")
