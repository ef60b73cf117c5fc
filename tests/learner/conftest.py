from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from jax.sharding import Mesh

from learner.config import LearnerConfig
from learner.training import trainer
from learner.training.micro_batches import forward_of
from learner.training.programs import Programs
from rollcast.policy.config import ModelConfig
from tests.learner.scripted_run import Authority, Script, ScriptedCoordinator, ScriptedOrigin, World

_PROGRAMS: dict[tuple[object, ...], Programs] = {}


def shared_programs(model: ModelConfig, config: LearnerConfig, mesh: Mesh) -> Programs:
    """Return the same programs for all trainers with equal settings. They hold no array."""
    key = model, repr(config.objective), repr(config.optimiser), forward_of(config, mesh), mesh
    if key not in _PROGRAMS:
        _PROGRAMS[key] = Programs(model, config, mesh)
    return _PROGRAMS[key]


@pytest.fixture(scope="module", autouse=True)
def programs_traced_once() -> Iterator[None]:
    """Trace and compile a trainer's programs once for all tests: a life of the tiny learner takes a second of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "Programs", shared_programs)
        yield


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
