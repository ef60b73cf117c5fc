from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from coordinator.config.tasks import FieldsConfig, HuggingFaceTask, JsonlTask, ParquetTask
from coordinator.tasks.fields import BadRow, Row
from coordinator.tasks.sources import LINE_BYTES_MAX, good_rows, read_rows
from rollcast.runtime.errors import MissingExtra, TaskError


def jsonl(path: Path, **settings: Any) -> JsonlTask:
    return JsonlTask(kind="jsonl", path=path, **settings)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not an object"),
        ('{"prompt": "a"}', "'answer' is missing"),
        ('{"answer": "a"}', "'prompt' is missing"),
        ('{"prompt": "a", "answer": true}', "'answer' is missing or not a text"),
        ('{"prompt": " ", "answer": "1"}', "'prompt' is missing"),
        ("[" * 100_000, "not JSON"),
        ('{"prompt": "\\ud800", "answer": "1"}', "'prompt' is missing or not a text"),
        ('{"prompt": "' + "a" * (1 << 20) + '", "answer": "1"}', "the row is too long"),
    ],
    ids=lambda value: value[:16],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(TaskError) as caught:
        list(good_rows(jsonl(path)))
    assert f"{path}, line 2" in str(caught.value)
    assert words in str(caught.value)
    assert list(good_rows(jsonl(path, bad_rows="skip"))) == [Row("a", "b")]


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'"' + b"a" * (8 * LINE_BYTES_MAX) + b'"\n{"prompt": "a", "answer": "b"}\n')
    tracemalloc.start()
    first, second = read_rows(jsonl(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(first, BadRow)
    assert "line is too long" in str(first)
    assert second == Row("a", "b")
    assert peak_bytes < 6 * LINE_BYTES_MAX


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "\xff\xfe", "answer": "b"}\n')
    with pytest.raises(TaskError, match="line 1"):
        list(good_rows(jsonl(path)))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot read the task file"):
        list(good_rows(jsonl(tmp_path / "none.jsonl")))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="has no problems"):
        list(good_rows(jsonl(tmp_path / "empty.jsonl")))


def test_more_rows_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    with pytest.raises(TaskError, match="more than 2 rows"):
        list(good_rows(jsonl(path, rows_max=2)))


def test_fields_lead_inwards(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    row = {"messages": [{"content": "1+1?"}], "reward": {"truth": 2}, "source": "school", "a.b": "dotted"}
    path.write_text(json.dumps(row))
    fields = FieldsConfig(prompt="messages.0.content", answer="reward.truth", metadata=["source", "a.b"])
    assert list(good_rows(jsonl(path, fields=fields))) == [
        Row("1+1?", "2", None, {"source": "school", "a.b": "dotted"})
    ]
    wrong = FieldsConfig(prompt="messages.1.content", answer="reward.truth")
    with pytest.raises(TaskError) as caught:
        list(good_rows(jsonl(path, fields=wrong)))
    assert "the row has a.b, messages, reward, source" in caught.value.cause


# ---------------------------------------------------------------- parquet


def write_parquet(path: Path, count: int, row_group: int) -> None:
    table = pa.table(
        {
            "question": [f"{n}+1?" for n in range(count)],
            "truth": [{"value": str(n + 1)} for n in range(count)],
            "unused": ["x" * 64] * count,
        }
    )
    parquet.write_table(table, path, row_group_size=row_group)


FIELDS = FieldsConfig(prompt="question", answer="truth.value")


def test_parquet_is_read_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "b.parquet", 1000, 100)
    write_parquet(tmp_path / "a.parquet", 3, 2)
    asked: list[Any] = []
    original = parquet.ParquetFile.iter_batches

    def watched(self: Any, *args: Any, **named: Any) -> Any:
        asked.append((named["row_groups"], named["columns"]))
        return original(self, *args, **named)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    rows = list(good_rows(ParquetTask(kind="parquet", path=tmp_path, fields=FIELDS)))
    assert [row.prompt for row in rows if isinstance(row, Row)][:4] == ["0+1?", "1+1?", "2+1?", "0+1?"]
    assert len(rows) == 1003
    assert asked[:3] == [([0], ["question", "truth"]), ([1], ["question", "truth"]), ([0], ["question", "truth"])]
    assert len(asked) == 12


def test_errors_in_parquet_name_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(path, 3, 2)
    with pytest.raises(TaskError, match="no column 'answer'") as caught:
        list(good_rows(ParquetTask(kind="parquet", path=path, fields=FieldsConfig(prompt="question"))))
    assert "it has question, truth, unused" in caught.value.cause
    parquet.write_table(pa.table({"prompt": ["a", None], "answer": ["1", "2"]}), path)
    with pytest.raises(TaskError, match=r"p\.parquet, row 2: 'prompt' is missing"):
        list(good_rows(ParquetTask(kind="parquet", path=path)))
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(TaskError, match="cannot read the task file"):
        list(good_rows(ParquetTask(kind="parquet", path=path)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=r"no \*\.parquet files"):
        list(good_rows(ParquetTask(kind="parquet", path=tmp_path / "empty")))


def test_a_missing_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra) as caught:
        list(read_rows(ParquetTask(kind="parquet", path=tmp_path / "p.parquet")))
    assert "rollcast[data]" in caught.value.fix
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra) as caught:
        list(read_rows(HuggingFaceTask(kind="huggingface", name="owner/sums")))
    assert "rollcast[hf]" in caught.value.fix


# ---------------------------------------------------------------- Hugging Face datasets


def test_datasets_are_streamed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = ModuleType("datasets")
    calls: list[Any] = []

    def load_dataset(name: str, subset: str | None, **named: Any) -> Iterator[dict[str, Any]]:
        calls.append((name, subset, named))
        if name == "owner/none":
            raise FileNotFoundError("no such dataset")
        return iter([{"question": "1+1?", "answer": 2}, {"question": None, "answer": 3}])

    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    task = HuggingFaceTask(
        kind="huggingface",
        name="owner/sums",
        subset="main",
        revision="abc",
        fields=FieldsConfig(prompt="question"),
    )
    rows = list(read_rows(task))
    assert rows[0] == Row("1+1?", "2")
    assert str(rows[1]).startswith("owner/sums [train], row 2: 'question' is missing")
    assert calls == [("owner/sums", "main", {"split": "train", "revision": "abc", "streaming": True})]
    with pytest.raises(TaskError, match=r"cannot read the dataset owner/none \[test\]") as caught:
        list(read_rows(HuggingFaceTask(kind="huggingface", name="owner/none", split="test")))
    assert "no such dataset" in caught.value.cause
