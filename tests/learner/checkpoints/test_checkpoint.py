"""Test checkpoints: exact resume, damaged folders, and saving while training continues."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from learner.checkpoints import checkpoint, fingerprints
from learner.checkpoints.arrays import ArrayWrite, SavedArrays, read_arrays
from learner.checkpoints.async_save import Saves
from learner.checkpoints.checkpoint import Checkpoints, HostState, Saving, configured_folder, folder_of
from learner.checkpoints.fingerprints import begin_fingerprints, digest_of, records_of
from learner.config import LearnerConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CheckpointError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

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
        base_hash="",
        sampling={"temperature": 1.0, "max_new_tokens": 4, "stop_token_ids": [1]},
        prompt_tokens_max=8,
        trained_ranges=[[1, 4], [9, 9]],
        figures={"reward_before": 0.25},
    )
    return replace(state, **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def arrays(value: float) -> dict[str, jax.Array]:
    return {"0/layers.0.kernel": jnp.full((3, 2), value, jnp.float32), "1/1/0/count": jnp.array(7, jnp.int32)}


def save(checkpoints: Checkpoints, value: float, host: HostState) -> None:
    checkpoints.begin(host, lambda path: ArrayWrite(path, arrays(value))).commit()


class Loaded(dict[str, jax.Array]):
    """Arrays of a checkpoint, which it loads when it is called."""

    def __call__(self, _: HostState, saved: SavedArrays) -> None:
        self.update(read_arrays(saved, saved.like()))


def digest_at(value: float) -> str:
    state = arrays(value)
    return digest_of(records_of(state, begin_fingerprints(state)))


def test_the_newest_checkpoint_is_restored_completely(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.restore(Loaded()) is None
    for step in (0, 3, 6):
        save(checkpoints, float(step), host(step))
    again, loaded = Checkpoints(folder, keep=2), Loaded()
    assert again.steps() == [3, 6]
    restored = again.restore(loaded)
    assert restored is not None
    assert restored.host == host(6)
    for name, value in arrays(6.0).items():
        np.testing.assert_array_equal(loaded[name], value)
        assert loaded[name].dtype == value.dtype
    assert restored.digest == digest_at(6.0) != digest_at(3.0)
    assert sorted(path.name for path in folder.iterdir()) == ["3-0", "3.json", "6-0", "6.json"]


def test_a_checkpoint_counts_only_once_it_is_committed(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    save(checkpoints, 3.0, host(3))
    saving = checkpoints.begin(host(6), lambda path: ArrayWrite(path, arrays(6.0)))
    assert checkpoints.steps() == [3]
    saving.discard()
    assert sorted(path.name for path in folder.iterdir()) == ["3-0", "3.json"]
    ArrayWrite(str(folder / "6-0"), arrays(6.0)).finish()  # a process that is killed before it commits
    assert Checkpoints(folder, keep=2).steps() == [3]
    assert not (folder / "6-0").exists()


def test_other_files_in_the_folder_are_left_alone(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    save(Checkpoints(folder, keep=2), 3.0, host(3))
    Checkpoints(folder, keep=2)
    assert (folder / "notes").is_dir()


def test_an_object_store_has_no_folder_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bucket(type(epath.Path())):  # type: ignore[misc]
        def mkdir(self, **_: Any) -> None:
            pass

    here = SimpleNamespace(Path=lambda path: Bucket(str(path).replace("gs://", f"{tmp_path}/")))
    monkeypatch.setattr(checkpoint, "epath", here)
    stored = Checkpoints("gs://bucket", keep=2)
    assert stored.steps() == []
    (tmp_path / "bucket").mkdir()
    for step in (1, 2, 3):
        stored.begin(host(step), lambda path: ArrayWrite(path, arrays(1.0))).commit()
    assert {path.name for path in (tmp_path / "bucket").iterdir()} == {"2-0", "2.json", "3-0", "3.json"}


def test_a_configured_folder_is_found_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run").prepare()
    assert configured_folder(run, "") == folder_of(run) == run.checkpoints
    assert configured_folder(run, str(tmp_path / "shared")) == folder_of(run) == str(tmp_path / "shared")
    assert configured_folder(run, "gs://bucket/run") == folder_of(run) == "gs://bucket/run"
    assert configured_folder(run, "") == folder_of(run) == run.checkpoints


def test_a_fingerprint_covers_values_and_places() -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    swapped = values.copy()
    swapped[0, 0], swapped[5, 3] = values[5, 3], values[0, 0]
    negative_zero = values.copy()
    negative_zero[0, 0] = -0.0
    states = [{"w": jnp.asarray(each)} for each in (values, swapped, negative_zero, values.T.copy(), values * 0.0)]
    assert len({digest_of(records_of(state, begin_fingerprints(state))) for state in states}) == len(states)


def mixed(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the finaliser of MurmurHash3."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ (value >> np.uint32(shift))) * np.uint32(factor)
    return value ^ (value >> np.uint32(16))


@pytest.mark.parametrize("shape", [(), (5,), (3, 24, 1024), (1, 7, 16384)], ids=str)
def test_a_fingerprint_is_the_sum_of_hashes_of_values_and_indices(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    index = np.arange(values.size, dtype=np.uint32)
    first = mixed(np.asarray(values).reshape(-1).view(np.uint32) ^ (index * np.uint32(0x9E3779B1)))
    second = mixed(first + (index ^ np.uint32(0x27D4EB2F)))
    expected = "".join(f"{half.sum(dtype=np.uint32):08x}" for half in (first, second))
    state = {"a": jnp.asarray(values)}
    assert records_of(state, begin_fingerprints(state))["a"].fingerprint == expected


def test_training_does_not_wait_for_fingerprints_on_a_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, ...]] = []
    sums = fingerprints.sums
    monkeypatch.setattr(fingerprints, "sums", lambda array, where: computed.append(array.shape) or sums(array, where))
    state = arrays(1.0)
    addresses = {name: array.unsafe_buffer_pointer() for name, array in state.items()}
    held = {name: fingerprints.HeldArray(array) for name, array in state.items()}
    assert {name: each.again().unsafe_buffer_pointer() for name, each in held.items()} == addresses, "no copy was made"
    checkpoints = Checkpoints(folder, keep=2)
    saving = checkpoints.begin(host(3), lambda path: ArrayWrite(path, state))
    stepped = jax.jit(lambda own: jax.tree.map(lambda leaf: leaf + 1, own), donate_argnums=0)(state)
    assert computed == []
    saving.commit()
    assert len(computed) == len(stepped) == len(state)
    restored = checkpoints.restore(Loaded())
    assert restored is not None
    assert restored.digest == digest_at(1.0)


def test_a_step_may_be_saved_again(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    save(checkpoints, 1.0, host(3))
    save(checkpoints, 2.0, host(3, epoch=1))
    restored = checkpoints.restore(Loaded())
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
    ("where", "tear"),
    [
        ("6-0/state", flipped),
        ("6-0/state", half),
        ("6.json", emptied),
        ("6.json", half),
        ("6-0", zeroed),
        ("6-0", Path.unlink),
    ],
)
def test_a_torn_checkpoint_gives_way_to_the_one_before(folder: Path, where: str, tear: Callable[[Path], None]) -> None:
    """A power loss may leave any part of the newest checkpoint unwritten."""
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        save(checkpoints, float(step), host(step))
    for path in [folder / where, *(folder / where).rglob("*")]:
        if path.is_file():
            tear(path)
    again = Checkpoints(folder, keep=2)
    restored = again.restore(Loaded())
    assert restored is not None
    assert restored.host.step == 3
    assert again.steps() == [3], "the torn one was removed"
    save(again, 6.0, host(6))
    restored = again.restore(Loaded())
    assert restored is not None
    assert restored.digest == digest_at(6.0)


def test_a_reader_leaves_a_torn_checkpoint_alone(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        save(checkpoints, float(step), host(step))
    emptied(folder / "6.json")
    reader = Checkpoints(folder, keep=2, read_only=True)
    restored = reader.restore(Loaded())
    assert restored is not None
    assert restored.host.step == 3
    assert reader.steps() == [3, 6]


def test_when_every_checkpoint_is_torn_that_is_an_error(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    save(checkpoints, 1.0, host(3))
    for path in (folder / "3-0" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot read any of the 1 checkpoints"):
        checkpoints.restore(Loaded())


def test_a_refused_host_state_is_not_a_torn_one(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (3, 6):
        save(checkpoints, float(step), host(step))

    def refuse(found: HostState, _: SavedArrays) -> None:
        raise CheckpointError(f"not ours: {found.step}")

    with pytest.raises(CheckpointError, match="not ours: 6"):
        checkpoints.restore(refuse)
    assert checkpoints.steps() == [3, 6]


def test_another_format_is_refused(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    save(checkpoints, 1.0, host(3, format=99))
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoints.restore(Loaded())


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
                Segment(
                    "assistant",
                    Epoch(0),
                    Version(0),
                    PeerId("p"),
                    pack_ids(tuple(random.integers(2, 12, 3))),
                    b"\1\1\1",
                ),
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
    saving = Checkpoints(folder, keep=2).begin(host(2), uninterrupted.begin_save)
    train(uninterrupted, range(2, 4))
    saving.commit()
    expected = digest(uninterrupted)
    jax.clear_caches()
    use_compilation_cache(tmp_path / "empty")  # the second life compiles anew

    second = Trainer(MODEL, config.model_copy(update={"seed": 99}))
    checkpoints = Checkpoints(folder, keep=2)
    saved = checkpoints.restore(lambda _, saved: second.load(saved))
    assert saved is not None
    train(second, range(saved.host.step, 4))
    assert digest(second) == expected


class FakeCheckpoints:
    """Checkpoints whose saves take until the test lets them end."""

    def __init__(self) -> None:
        self.saved: list[int] = [0]
        self.beginning, self.committing = threading.Event(), threading.Event()
        self.may_begin, self.may_end = threading.Event(), threading.Event()
        self.may_begin.set()
        self.may_end.set()
        self.error: CheckpointError | None = None
        self.discarded = False

    def steps(self) -> list[int]:
        return self.saved[-2:]

    def begin(self, host: HostState, write: Callable[[str], ArrayWrite]) -> Saving:
        self.beginning.set()
        assert self.may_begin.wait(10.0)
        return Saving(cast(Checkpoints, self), host, write(""))

    def commit(self, host: HostState, _: ArrayWrite) -> None:
        self.committing.set()
        assert self.may_end.wait(10.0)
        if self.error is not None:
            raise self.error
        self.saved.append(host.step)

    def discard(self, _: ArrayWrite) -> None:
        self.discarded = True


def nothing(_: str) -> ArrayWrite:
    return cast(ArrayWrite, None)


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


class BackgroundSaves:
    """Saves of fake checkpoints, with a thread that begins them and one that writes."""

    def __init__(self, checkpoints: FakeCheckpoints, reported: list[int]) -> None:
        self.worker, self.writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.saves = Saves(cast(Checkpoints, checkpoints), self.writer, reported.append)

    async def start(self, step: int, may_save: Callable[[], Awaitable[bool]] = yes) -> None:
        await self.begin(step)
        self.saves.start(may_save)

    async def begin(self, step: int) -> None:
        await self.saves.begin(host(step), nothing, self.worker)


@pytest.fixture
async def background(checkpoints: FakeCheckpoints, reported: list[int]) -> AsyncIterator[BackgroundSaves]:
    background = BackgroundSaves(checkpoints, reported)
    with background.worker, background.writer:
        yield background
        checkpoints.may_end.set()
        await background.saves.close()


async def test_training_continues_while_a_checkpoint_is_written(
    background: BackgroundSaves, checkpoints: FakeCheckpoints, reported: list[int]
) -> None:
    saves = background.saves
    checkpoints.may_end.clear()
    await background.start(3)
    assert saves.under_way is not None
    assert saves.steps() == [0, 3], "versions that it needs must stay"
    second = asyncio.create_task(background.start(6))
    await asyncio.sleep(0)
    assert not second.done(), "one copy of the state at a time"
    checkpoints.may_end.set()
    await second
    await saves.finish()
    assert checkpoints.saved == [0, 3, 6]
    assert reported == [0, 3]


async def test_nothing_is_saved_unless_it_may_be(
    background: BackgroundSaves, checkpoints: FakeCheckpoints, reported: list[int]
) -> None:
    await background.start(3, no)
    await background.saves.finish()
    assert (checkpoints.saved, checkpoints.discarded, reported) == ([0], True, [])


async def test_arrays_of_a_cancelled_save_are_waited_for_and_removed(
    background: BackgroundSaves, checkpoints: FakeCheckpoints
) -> None:
    asked = asyncio.Event()

    async def never() -> bool:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    await background.start(3, never)
    await asked.wait()
    await background.saves.close()
    assert (checkpoints.saved, checkpoints.discarded) == ([0], True)


async def test_a_save_that_a_cancelled_life_has_only_begun_is_waited_for_and_removed(
    background: BackgroundSaves, checkpoints: FakeCheckpoints
) -> None:
    """The thread copies the state, and orbax begins to write it, while the task that asked for it is cancelled."""
    checkpoints.may_begin.clear()
    beginning = asyncio.create_task(background.begin(3))
    await asyncio.to_thread(checkpoints.beginning.wait, 10.0)
    beginning.cancel()
    await asyncio.gather(beginning, return_exceptions=True)
    closing = asyncio.create_task(background.saves.close())
    checkpoints.may_begin.set()
    await closing
    assert (checkpoints.saved, checkpoints.discarded) == ([0], True)


async def test_a_save_whose_task_never_ran_is_removed(
    background: BackgroundSaves, checkpoints: FakeCheckpoints
) -> None:
    await background.start(3)
    await background.saves.close()
    assert (checkpoints.saved, checkpoints.discarded) == ([0], True)


async def test_a_save_that_is_being_committed_is_completed(
    background: BackgroundSaves, checkpoints: FakeCheckpoints
) -> None:
    checkpoints.may_end.clear()
    await background.start(3)
    await asyncio.to_thread(checkpoints.committing.wait, 10.0)
    closing = asyncio.create_task(background.saves.close())
    checkpoints.may_end.set()
    await closing
    assert (checkpoints.saved, checkpoints.discarded) == ([0, 3], False)


async def test_a_failure_is_raised_once_it_is_waited_for(
    background: BackgroundSaves, checkpoints: FakeCheckpoints
) -> None:
    checkpoints.error = CheckpointError("no space")
    await background.start(3)
    with pytest.raises(CheckpointError, match="no space"):
        await background.saves.finish()
