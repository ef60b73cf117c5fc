"""Test the hash of states."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from rollcast.wire.versions import state_hash as hashing
from rollcast.wire.versions.chunks import chunk_list, chunk_list_hash
from rollcast.wire.versions.state_hash import LEAF_BYTES, PrefixHash, StateHash, state_hash

LEAVES = random.Random(0).randbytes(2 * LEAF_BYTES + 1000)


@pytest.mark.parametrize("size_bytes", [0, 1, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, len(LEAVES)])
def test_the_leaves_are_the_chunk_list_of_the_largest_chunks(size_bytes: int) -> None:
    state = LEAVES[:size_bytes]
    growing = StateHash()
    growing.update(state)
    assert growing.leaves == chunk_list(state, LEAF_BYTES)
    assert growing.digest() == state_hash(state) == chunk_list_hash(chunk_list(state, LEAF_BYTES))
    assert growing.done_bytes == size_bytes


def test_the_definition_is_as_documented() -> None:
    hashes = b"".join(blake3(LEAVES[i : i + LEAF_BYTES]).digest() for i in range(0, len(LEAVES), LEAF_BYTES))
    assert state_hash(LEAVES) == blake3(blake3(hashes).digest()).digest()


@given(cuts=st.lists(st.integers(0, len(LEAVES)), max_size=6))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    growing = StateHash()
    places = [0, *sorted(cuts), len(LEAVES)]
    for start, stop in itertools.pairwise(places):
        growing.update(memoryview(LEAVES)[start:stop])
    assert growing.digest() == state_hash(LEAVES)


def test_every_byte_counts() -> None:
    for at in (0, LEAF_BYTES, len(LEAVES) - 1):
        changed = bytearray(LEAVES)
        changed[at] ^= 1
        assert state_hash(changed) != state_hash(LEAVES)
    assert state_hash(LEAVES[:-1]) != state_hash(LEAVES)


def test_bytes_written_later_are_hashed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_STEP_BYTES", 1000)
    state = LEAVES[:5000]
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(len(state))
        growing = PrefixHash(file.fileno(), len(state))
        for stop in (0, 1, 2500, 2400, len(state)):
            os.pwrite(file.fileno(), state[growing.done_bytes : stop], growing.done_bytes)
            growing.advance(stop)
    assert growing.digest() == state_hash(state)
