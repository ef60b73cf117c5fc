from __future__ import annotations

import os
import tracemalloc

import pytest

from coordinator.tasks.checks.code_tests import CodeTests
from coordinator.tasks.fields import Row
from coordinator.tasks.row_spool import RowSpool
from rollcast.runtime.errors import TaskError


def test_rows_come_back_in_any_order() -> None:
    rows = [Row(f"{n}?", "é" * n, CodeTests(("assert x",)) if n % 2 else None, {"n": n}) for n in range(20)]
    spool = RowSpool(iter(rows))
    assert len(spool) == 20
    assert [spool[index] for index in (19, 0, 7, 7)] == [rows[19], rows[0], rows[7], rows[7]]
    with pytest.raises(IndexError):
        spool[20]


def test_memory_does_not_grow_with_the_texts() -> None:
    tracemalloc.start()
    spool = RowSpool(Row("x" * 1000, str(n)) for n in range(8000))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spool[7999].answer == "7999"
    assert held_bytes < 400_000


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(TaskError, match="temporary file") as caught:
        RowSpool(iter([Row("a", "b")]))
    assert "TMPDIR" in caught.value.fix
