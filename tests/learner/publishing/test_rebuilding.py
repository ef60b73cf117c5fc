from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learner.publishing.memory_files import MemoryFile, MemoryFiles
from learner.publishing.rebuilding import apply_in_place, rebuild
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

ITEMS = 5000
TENSORS = tensor_table([("weights", "bfloat16", (ITEMS,))])


def states(count: int) -> list[bytes]:
    draw = np.random.default_rng(0)
    items = draw.integers(0, 1 << 16, ITEMS, np.uint16)
    found = [items.tobytes()]
    for _ in range(count - 1):
        items[draw.integers(0, ITEMS, 50)] += 1
        found.append(items.tobytes())
    return found


def record(version: int, state: bytes) -> VersionRecord:
    return VersionRecord(RunId("run"), Epoch(0), Version(version), b"", state_hash(state), len(state), TENSORS, "{}")


def delta(old: bytes, new: bytes) -> bytes:
    return b"".join(encode_delta(TENSORS, old, new, invertible=True))


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_state_follows_from_older_and_from_newer_ones(tmp_path: Path, in_memory: bool) -> None:
    zero, one, two = states(3)
    deltas = [delta(zero, one), delta(one, two)]
    for source, target, way in (
        (zero, two, [(deltas[0], True), (deltas[1], True)]),
        (two, zero, [(deltas[1], False), (deltas[0], False)]),
    ):
        memory: MemoryFile | None = MemoryFiles().open(len(source)) if in_memory else None
        assert rebuild(record(0, target), source, way, memory, tmp_path, "") == target
    assert not list(tmp_path.iterdir())


def test_another_state_than_was_signed_is_refused(tmp_path: Path) -> None:
    zero, one, two = states(3)
    for way in ([(delta(zero, one), True)], [(b"noise", True)]):
        with pytest.raises(CheckpointError, match="version 2, made of another version and deltas, is damaged"):
            rebuild(record(2, two), zero, way, None, tmp_path, "")


def test_a_state_that_nothing_reads_is_changed_where_it_is(tmp_path: Path) -> None:
    zero, one, two = states(3)
    memory = MemoryFiles().open(len(zero))
    assert memory is not None
    first = rebuild(record(1, one), zero, [(delta(zero, one), True)], memory, tmp_path, "")
    assert apply_in_place(record(2, two), memory, [(delta(one, two), True)], "") == two
    assert first == two, "it is the same memory"
