"""JSON that is made once for all who ask within a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.http.routes import JsonText
from rollcast.runtime import finite_json

KEPT_S = 0.5


class CachedJson:
    """Args: make: called at most every KEPT_S seconds."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made_at_s = float("-inf")
        self._text = JsonText("")

    def text(self) -> JsonText:
        """What make gives, as JSON; up to KEPT_S seconds old."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._made_at_s >= KEPT_S:
            self._made_at_s, self._text = now_s, JsonText(finite_json.dumps(self._make()))
        return self._text
