from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.wire.text.data_files import BadLine, jsonl_rows, optional_import


def test_a_line_that_is_no_json_is_a_bad_row_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n[2]\n')
    (first, good), (second, bad), (third, listed) = jsonl_rows(path, setting="data.path")
    assert (first, second, third) == tuple(f"{path}, line {number}" for number in (1, 3, 4))
    assert (good, listed) == ({"a": 1}, [2])
    assert isinstance(bad, BadLine)
    assert str(bad) == f"{path}, line 3: not JSON"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"a": ', "Expecting value at column 7, where it ends"),
        (b'{"a": 1} {"b": 2}', "Extra data at column 10, where it has '{\"b\": 2}'"),
        (b'{"a": "b" c' + 30 * b"d", f"Expecting ',' delimiter at column 11, where it has 'c{23 * 'd'}'..."),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(tmp_path: Path, line: bytes, cause: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b"\n")
    ((_, bad),) = jsonl_rows(path, setting="data.path")
    assert isinstance(bad, BadLine)
    assert bad.cause == cause


def test_errors_name_the_setting_and_the_extra(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot read the data file") as caught:
        next(jsonl_rows(tmp_path / "none.jsonl", setting="data.path"))
    assert caught.value.fix == "correct data.path"
    with pytest.raises(MissingExtra, match="a package is needed"):
        optional_import("no_such_package_at_all", "a package is needed", "data")
