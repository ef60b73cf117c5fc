from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from learner.publishing import memory_files
from learner.publishing.memory_files import GIVEN_BACK_BYTES, MemoryFiles, SpentState, take_unread


def test_a_file_is_written_by_name_and_read_as_mapped() -> None:
    file = MemoryFiles().open(100)
    assert file is not None
    with file.path.open("r+b") as stream:
        stream.write(b"x" * 100)
    view = file.map(100)
    assert (view, view.readonly) == (b"x" * 100, True)


def test_memory_is_used_again_only_when_nothing_reads_it() -> None:
    files = MemoryFiles()
    first = files.open(4096)
    assert first is not None
    os.pwrite(first.descriptor, b"a" * 4096, 0)
    descriptor, array = first.descriptor, np.frombuffer(first.map(4096), np.uint8)
    del first
    second = files.open(4096)
    assert second is not None
    assert second.descriptor != descriptor
    os.pwrite(second.descriptor, b"b" * 4096, 0)
    assert bytes(array) == b"a" * 4096
    del array
    gc.collect()
    third = files.open(4096)
    assert third is not None
    assert third.descriptor == descriptor


def test_one_unused_file_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    several = [files.open(4096) for _ in range(3)]
    descriptors = [file.descriptor for file in several if file is not None]
    several.clear()
    gc.collect()
    open_ones = [one for one in descriptors if os.path.exists(f"/proc/self/fd/{one}")]
    assert len(open_ones) == 1
    monkeypatch.setattr(memory_files, "fits_in_memory", lambda _: False)
    again = files.open(4096)
    assert again is not None
    assert files.open(4096) is None, "there is no room for another one"


def memory_state(files: MemoryFiles, data: bytes) -> memoryview:
    file = files.open(len(data))
    assert file is not None
    os.pwrite(file.descriptor, data, 0)
    return file.map(len(data))


def test_only_a_state_that_nothing_else_reads_is_taken() -> None:
    files = MemoryFiles()
    states = {1: ("one", memory_state(files, b"a" * 8192)), 2: ("two", memoryview(b"b"))}
    assert take_unread(states, 2) is None, "not in memory"
    part, array = states[1][1][100:200], np.frombuffer(states[1][1], np.uint8)
    assert take_unread(states, 1) is None
    del part
    assert take_unread(states, 1) is None
    assert (states[1][1], array[0]) == (b"a" * 8192, ord("a")), "it can be read as before"
    del array
    entry = states[1]
    assert take_unread(states, 1) is None
    del entry
    file = take_unread(states, 1)
    assert file is not None
    assert states.keys() == {2}


def test_a_spent_state_frees_what_was_read() -> None:
    files, size_bytes = MemoryFiles(), 3 * GIVEN_BACK_BYTES + 5000
    states = {1: ("one", memory_state(files, b"a" * size_bytes))}
    file = take_unread(states, 1)
    assert file is not None
    spent, descriptor = SpentState(file, size_bytes), file.descriptor

    def held() -> int:
        return 512 * os.fstat(descriptor).st_blocks

    assert spent.view[-1:] == b"a"
    spent.passed(GIVEN_BACK_BYTES - 1)
    assert held() >= size_bytes
    spent.passed(2 * GIVEN_BACK_BYTES + 1)
    assert size_bytes - 2 * GIVEN_BACK_BYTES <= held() < size_bytes - GIVEN_BACK_BYTES
    assert spent.view[2 * GIVEN_BACK_BYTES :] == b"a" * (size_bytes - 2 * GIVEN_BACK_BYTES)
    spent.passed(size_bytes)
    assert held() == 0
    del file, spent
    gc.collect()
    assert not os.path.exists(f"/proc/self/fd/{descriptor}"), "it is not kept for the next state"
