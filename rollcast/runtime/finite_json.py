"""Write JSON that every reader accepts: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()


def finite(value: Any) -> Any:
    """Return the value with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Return compact JSON on one line.

    msgspec writes numbers that are not finite as null without the copy that json needs, but refuses integers beyond
    64 bits, lone surrogates, and unusual types of mappings and sequences; these take the slower way.
    """
    try:
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
