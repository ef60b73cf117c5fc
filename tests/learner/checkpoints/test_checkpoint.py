"""Test checkpoints: exact resume, damaged folders, and saving while training continues."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from learner.checkpoints.async_save import Saves
from learner.checkpoints.checkpoint import Checkpoints, HostState, digest_of
from learner.config import LearnerConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment

MODEL = ModelConfig(
    vocabulary_size=12, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)


def host(step: int, **values: Any) -> HostState:
    state = HostState(
        step=step,
        newest_version=step,
        run_id="run",
        epoch=0,
        seed=2**62,
        tokenizer_json="{}",
        model_json=MODEL.model_dump_json(),
        sampling={"temperature": 1.0, "max_new_tokens": 4, "stop_token_ids": [1]},
        prompt_tokens_max=8,
        trained_ranges=[[1, 4], [9, 9]],
        figures={"reward_before": 0.25},
    )
    return replace(state, **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def arrays(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {"0/layers.0.kernel": np.full((3, 2), value, np.float32), "1/1/0/count": np.array(7, np.int32)}


def anything(_: HostState) -> dict[str, np.ndarray[Any, Any]]:
    return arrays(0.0)


def test_the_newest_checkpoint_is_restored_completely(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.restore(anything) is None
    for step in (0, 3, 6):
        checkpoints.save(arrays(float(step)), host(step))
    again = Checkpoints(folder, keep=2)
    assert again.steps() == [3, 6]
    restored = again.restore(anything)
    assert restored is not None
    assert restored.host == host(6)
    for name, value in arrays(6.0).items():
        np.testing.assert_array_equal(restored.state[name], value)
        assert restored.state[name].dtype == value.dtype
    assert restored.digest == digest_of(arrays(6.0)) != digest_of(arrays(3.0))


def test_a_step_may_be_saved_again(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(arrays(1.0), host(3))
    checkpoints.save(arrays(2.0), host(3, epoch=1))
    restored = checkpoints.restore(anything)
    assert restored is not None
    assert restored.host == host(3, epoch=1)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flipped(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else data)


@pytest.mark.parametrize(
    ("where", "tear"), [("state", flipped), ("state", half), ("host", emptied), ("", zeroed), ("", Path.unlink)]
)
def test_a_torn_checkpoint_gives_way_to_the_one_before(folder: Path, where: str, tear: Callable[[Path], None]) -> None:
    """A power loss may leave any part of the newest checkpoint unwritten."""
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        checkpoints.save(arrays(float(step)), host(step))
    for path in (folder / "6" / where).rglob("*"):
        if path.is_file():
            tear(path)
    again = Checkpoints(folder, keep=2)
    restored = again.restore(anything)
    assert restored is not None
    assert restored.host.step == 3
    assert again.steps() == [3], "the torn one was removed"
    again.save(arrays(6.0), host(6))
    restored = again.restore(anything)
    assert restored is not None
    assert restored.digest == digest_of(arrays(6.0))


def test_a_reader_leaves_a_torn_checkpoint_alone(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        checkpoints.save(arrays(float(step)), host(step))
    emptied(next((folder / "6" / "host").glob("*")))
    reader = Checkpoints(folder, keep=2, read_only=True)
    restored = reader.restore(anything)
    assert restored is not None
    assert restored.host.step == 3
    assert reader.steps() == [3, 6]


def test_when_every_checkpoint_is_torn_that_is_an_error(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(arrays(1.0), host(3))
    for path in (folder / "3" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot read any of the 1 checkpoints"):
        checkpoints.restore(anything)


def test_a_refused_host_state_is_not_a_torn_one(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        checkpoints.save(arrays(float(step)), host(step))

    def refuse(found: HostState) -> Any:
        raise CheckpointError(f"not ours: {found.step}")

    with pytest.raises(CheckpointError, match="not ours: 6"):
        checkpoints.restore(refuse)
    assert checkpoints.steps() == [3, 6]


def test_another_format_is_refused(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(arrays(1.0), host(3, format=99))
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoints.restore(anything)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=2)


# ---------------------------------------------------------------- resuming equals never having stopped
def stream_batch(step: int) -> PackedBatch:
    random = np.random.default_rng(step)
    rows = [
        TrainingRow(
            rollout_id=100 * step + index,
            group_id=index // 4,
            prompt_token_ids=tuple(random.integers(2, 12, 5).tolist()),
            segments=(
                Segment("assistant", Epoch(0), Version(0), PeerId("p"), tuple(random.integers(2, 12, 3)), b"\1\1\1"),
            ),
            temperature=1.0,
            reward=float(random.integers(0, 2)),
        )
        for index in range(8)
    ]
    return pack(rows, time=10, objective=ObjectiveConfig(), completion_tokens_max=4)


def train(trainer: Trainer, steps: range) -> None:
    for step in steps:
        packed = stream_batch(step)
        trainer.train_step(packed, behaviour_by_version(trainer, packed, lambda version: trainer.params()).logprobs)


def digest(trainer: Trainer) -> str:
    state = trainer.state()
    content = hashlib.sha256(json.dumps(sorted(state)).encode())
    for name in sorted(state):
        content.update(np.ascontiguousarray(state[name]).tobytes())
    return content.hexdigest()


@pytest.mark.usefixtures("restored_compilation_cache")
def test_a_resumed_learner_equals_one_that_never_stopped(folder: Path, tmp_path: Path) -> None:
    config = LearnerConfig(seed=3)
    uninterrupted = Trainer(MODEL, config)
    train(uninterrupted, range(2))
    Checkpoints(folder, keep=2).save(uninterrupted.state(), host(2))
    train(uninterrupted, range(2, 4))
    expected = digest(uninterrupted)
    jax.clear_caches()
    use_compilation_cache(tmp_path / "empty")  # the second life compiles anew

    second = Trainer(MODEL, config.model_copy(update={"seed": 99}))
    checkpoints = Checkpoints(folder, keep=2)
    saved = checkpoints.restore(lambda _: second.state())
    assert saved is not None
    second.restore(saved.state)
    train(second, range(saved.host.step, 4))
    assert digest(second) == expected


class FakeCheckpoints:
    """Checkpoints whose saves take until the test lets them end."""

    def __init__(self) -> None:
        self.saved: list[int] = [0]
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: CheckpointError | None = None

    def steps(self) -> list[int]:
        return self.saved[-2:]

    def save(self, state: Mapping[str, Any], host: HostState) -> None:
        assert self.may_end.wait(10.0)
        if self.error is not None:
            raise self.error
        self.saved.append(host.step)


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@pytest.fixture
def checkpoints() -> FakeCheckpoints:
    return FakeCheckpoints()


@pytest.fixture
def reported() -> list[int]:
    return []


@pytest.fixture
async def saves(checkpoints: FakeCheckpoints, reported: list[int]) -> AsyncIterator[Saves]:
    with ThreadPoolExecutor(1) as writer:
        saves = Saves(cast(Checkpoints, checkpoints), writer, reported.append)
        yield saves
        checkpoints.may_end.set()
        await saves.cancel()


async def test_training_continues_while_a_checkpoint_is_written(
    saves: Saves, checkpoints: FakeCheckpoints, reported: list[int]
) -> None:
    checkpoints.may_end.clear()
    await saves.start({}, host(3), yes)
    assert saves.under_way is not None
    assert saves.steps() == [0, 3], "versions that it needs must stay"
    second = asyncio.create_task(saves.start({}, host(6), yes))
    await asyncio.sleep(0)
    assert not second.done(), "one copy of the state at a time"
    checkpoints.may_end.set()
    await second
    await saves.finish()
    assert checkpoints.saved == [0, 3, 6]
    assert reported == [0, 3]


async def test_nothing_is_saved_unless_it_may_be(
    saves: Saves, checkpoints: FakeCheckpoints, reported: list[int]
) -> None:
    await saves.start({}, host(3), no)
    await saves.finish()
    assert (checkpoints.saved, reported) == ([0], [])


async def test_a_failure_is_raised_once_it_is_waited_for(saves: Saves, checkpoints: FakeCheckpoints) -> None:
    checkpoints.error = CheckpointError("no space")
    await saves.start({}, host(3), yes)
    with pytest.raises(CheckpointError, match="no space"):
        await saves.finish()
