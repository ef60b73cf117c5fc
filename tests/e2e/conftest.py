"""Let whole runs compile as a user's do, with XLA's own optimisations."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_optimisations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
