"""One text for all who ask within a while."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.http import health
from coordinator.http.health import CachedJson


async def test_it_is_made_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "KEPT_S", 0.05)
    made = 0

    def make() -> dict[str, float]:
        nonlocal made
        made += 1
        return {"made": made, "none": float("nan")}

    text = CachedJson(make)
    assert [text.text(), text.text()] == ['{"made":1,"none":null}'] * 2
    await asyncio.sleep(0.06)
    assert text.text() == '{"made":2,"none":null}'
