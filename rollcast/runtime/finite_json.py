"""JSON that every reader accepts: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()


def finite(value: Any) -> Any:
    """The same value with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Compact JSON on one line.

    msgspec writes what is not finite as null by itself, without the copy that json needs; it refuses integers beyond
    64 bits, halves of surrogate pairs, and mappings and sequences of other kinds.
    """
    try:
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
