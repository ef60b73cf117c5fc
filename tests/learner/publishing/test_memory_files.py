from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from learner.publishing import memory_files
from learner.publishing.memory_files import MemoryFiles


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
