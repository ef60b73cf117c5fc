from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.learner.scripted_run import Authority, Script, ScriptedCoordinator, ScriptedOrigin, World


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "secrets")


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def world(authority: Authority, script: Script, tmp_path: Path) -> AsyncIterator[World]:
    coordinator, origin = ScriptedCoordinator(authority, script), ScriptedOrigin(authority)
    coordinator.origin_address = await origin.start()
    port = await coordinator.start()
    try:
        yield World(authority, coordinator, origin, port, tmp_path / "run")
    finally:
        await coordinator.stop()
        await origin.stop()
