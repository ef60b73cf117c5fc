"""Test environments of the package verifiers, in the interpreter that ROLLCAST_VERIFIERS_PYTHON names."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply, Turn
from coordinator.environments.pool import EnvironmentPool
from coordinator.environments.process import EnvironmentSpec
from rollcast.runtime.errors import TaskError
from rollcast.wire.ids import EpisodeId

PYTHON = Path(os.environ.get("ROLLCAST_VERIFIERS_PYTHON", sys.executable))
TASKS = str(Path(__file__).with_name("doubling.py"))


def spec(**settings: Any) -> EnvironmentSpec:
    return EnvironmentSpec("verifiers", {"env": {}, "path": TASKS, "tasks_max": 100, **settings}, 60.0, PYTHON)


def turn(text: str, *, last: bool = False) -> Turn:
    return Turn(text, text, "", (), last)


@pytest.fixture
async def pool() -> AsyncIterator[EnvironmentPool]:
    pool = EnvironmentPool({"twice": spec()}, 1, 100)
    await pool.start()
    yield pool
    await pool.close()


@pytest.mark.verifiers
@pytest.mark.timeout(600)
async def test_episodes_of_several_turns(pool: EnvironmentPool) -> None:
    """One start for all cases: importing the package takes seconds."""
    (lane,) = pool._lanes["twice"]
    assert lane.process.problem_count == 10
    one = EpisodeId(1)
    start = await pool.open(one, "twice", 3)
    assert start.messages == ({"role": "system", "content": "Add."}, {"role": "user", "content": "13+13="})
    assert await lane.process.ask("demonstrate", one) == {"id": 2, "text": "26"}
    assert await pool.step(one, turn("26")) == Reply(({"role": "user", "content": "26+26="},), 0.0, False)
    assert (await lane.process.ask("demonstrate", one))["text"] == "52"
    assert await pool.step(one, turn("52")) == Reply((), 1.0, True)

    many = [EpisodeId(number) for number in range(10, 40)]
    await asyncio.gather(*(pool.open(episode, "twice", episode) for episode in many))
    replies = await asyncio.gather(*(pool.step(episode, turn("leave")) for episode in many))
    assert {(reply.reward, reply.done) for reply in replies} == {(0.0, True)}

    # The environment would go on, but the episode has reached a limit: the package scores what there is.
    cut = EpisodeId(2)
    await pool.open(cut, "twice", 0)
    assert await pool.step(cut, turn("40", last=True)) == Reply((), 1.0, True)

    # A reward that raises is not a reward of 0.
    broken = EpisodeId(3)
    await pool.open(broken, "twice", 0)
    await pool.step(broken, turn("20"))
    with pytest.raises(EnvironmentFailed, match="the reward is broken"):
        await pool.step(broken, turn("break"))

    # A worker that dies takes no episode with it.
    lost = EpisodeId(4)
    await pool.open(lost, "twice", 5)
    await pool.step(lost, turn("30"))
    await lane.process.kill()
    assert await pool.step(lost, turn("60")) == Reply((), 1.0, True)
    assert pool.replayed == 1


@pytest.mark.verifiers
@pytest.mark.timeout(600)
async def test_an_environment_that_cannot_be_built_is_explained() -> None:
    pool = EnvironmentPool({"nothing": spec(path="", env={"taskset": {"id": "no-such-taskset"}})}, 1, 100)
    with pytest.raises(TaskError, match="cannot be built") as error:
        await pool.start()
    assert "no-such-taskset" in error.value.cause
    await pool.close()


async def test_without_the_package_its_installation_is_explained() -> None:
    pool = EnvironmentPool(
        {"twice": EnvironmentSpec("verifiers", {"env": {}, "path": TASKS, "tasks_max": 9}, 9.0)}, 1, 9
    )
    with pytest.raises(TaskError, match=r"verifiers 0\.4") as error:
        await pool.start()
    assert "task.python" in error.value.fix
    await pool.close()
