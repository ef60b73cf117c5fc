"""Test rows of data sets: their sources, the mapping of fields to problems, and the spool on disk."""

from __future__ import annotations

import json
import logging
import os
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from coordinator.config.tasks import FieldsConfig, HuggingFaceTask, JsonlTask, ParquetTask, PythonTask
from coordinator.tasks.checks.code_tests import CodeTests
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.fields import Row, row_of
from coordinator.tasks.row_spool import RowSpool
from coordinator.tasks.rows import Rows
from coordinator.tasks.sources import good_rows, read_rows
from coordinator.tasks.token_limits import TokenLimits
from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.wire.text.data_files import LINE_BYTES_MAX, BadRow
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder


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
        ('{"prompt": ["a"], "answer": "1"}', "'prompt' is neither a text nor chat messages\n  cause: message 1 lacks"),
        ('{"prompt": [{"role": "user", "content": 7}], "answer": "1"}', "message 1 lacks a role"),
        ('{"prompt": [], "answer": "1"}', "'prompt' does not end with a message of the user"),
        ('{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}', "there is nothing to answer"),
        ('{"prompt": " ", "answer": "1"}', "'prompt' is missing or not a text\n  cause: it is empty"),
        ("[" * 100_000, "not JSON"),
        ('{"prompt": "\\ud800", "answer": "1"}', "half of a character"),
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
    assert ("task.fields" in caught.value.fix) == ("not JSON" not in words), "no other column makes it JSON"
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
    with pytest.raises(TaskError, match="cannot read the data file"):
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


def test_parquet_errors_name_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(path, 3, 2)
    with pytest.raises(TaskError, match="no column 'answer'") as caught:
        list(good_rows(ParquetTask(kind="parquet", path=path, fields=FieldsConfig(prompt="question"))))
    assert "it has question, truth, unused" in caught.value.cause
    parquet.write_table(pa.table({"prompt": ["a", None], "answer": ["1", "2"]}), path)
    with pytest.raises(TaskError, match=r"p\.parquet, row 2: 'prompt' is missing"):
        list(good_rows(ParquetTask(kind="parquet", path=path)))
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(TaskError, match="cannot read the data file"):
        list(good_rows(ParquetTask(kind="parquet", path=path)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=r"no \*\.parquet files"):
        list(good_rows(ParquetTask(kind="parquet", path=tmp_path / "empty")))


def test_missing_library_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra) as caught:
        list(read_rows(ParquetTask(kind="parquet", path=tmp_path / "p.parquet")))
    assert "[data]" in caught.value.fix
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra) as caught:
        list(read_rows(HuggingFaceTask(kind="huggingface", name="owner/sums")))
    assert "[hf]" in caught.value.fix


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


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of(path: Path, **fields: object) -> Rows:
    return Rows(JsonlTask(kind="jsonl", path=path, fields=FieldsConfig.model_validate(fields)))


@pytest.fixture
def task(tmp_path: Path) -> Rows:
    rows = [{"prompt": f"Half of {n}?", "answer": f"{n}/2"} for n in range(1, 8)]
    return of(write(tmp_path / "p.jsonl", rows))


def test_rows_are_problems(task: Rows) -> None:
    assert task.problem_count == 7
    assert task.problem(2) == Problem("jsonl:2", "Half of 3?", "3/2", {})
    assert task.problem(9) == task.problem(2)
    assert task.wording() == ("Half of ",)
    assert task.characters() == "/1234567?"
    assert task.demonstration(task.problem(0), flawed=True, random=Random(0)) == "1/2"


@pytest.mark.parametrize(
    ("answer", "completion", "right"),
    [
        ("1/2", "1/2", True),
        ("1/2", "0.5", True),
        ("1/2", r"\frac{2}{4}", True),
        ("1/2", r"so it is $\frac{1}{2}$", True),
        ("1/2", "1/3", False),
        ("1/2", "", False),
        ("1/2", "\N{REPLACEMENT CHARACTER}", False),
        ("x^2+1", "1+x^2", True),
        ("x^2+1", "x^2-1", False),
        ("1,000", "1000", True),
        ("Paris", " Paris ", True),
        ("Paris", "Pairs", False),  # the same letters, which as a product would be equal
        ("42", "4 2", False),
        ("2x+1", "1", False),
        ("2x+1", "1+2*x", True),
        ("12 apples", "12", True),
        ("42", "(" * 60, False),
    ],
)
def test_mathematics_is_compared_as_such(tmp_path: Path, answer: str, completion: str, right: bool) -> None:
    task = of(write(tmp_path / "p.jsonl", [{"prompt": "?", "answer": answer}]))
    score = task.verify(task.problem(0), completion)
    assert (score.exact, score.reward) == (right, float(right))


def test_texts_that_are_not_mathematics_are_not_logged(task: Rows, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        task.verify(task.problem(0), r"$\frac{$ \left( \notacommand")
    assert caplog.records == []


def test_a_prompt_may_be_a_conversation(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?", "name": "Ann"}]
    path = tmp_path / "chats.parquet"
    parquet.write_table(pa.Table.from_pylist([{"prompt": said, "reward_model": {"ground_truth": "2"}}]), path)
    fields = FieldsConfig(prompt="prompt", answer="reward_model.ground_truth")
    rows = Rows(ParquetTask(kind="parquet", path=path, fields=fields))
    kept = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"})
    problem = rows.problem(0)
    assert problem == Problem("parquet:0", "Be brief.\n1+1?", "2", {"messages": kept})
    small = Tokenizer((), rows.characters())
    prompt, why = TokenLimits(small, 64, 8).check(problem)
    assert (small.decode(prompt or ()), why) == ("Be brief.\n1+1?", "")
    with_template = HubTokenizer(tokenizer_folder(tmp_path / "model"))
    prompt, why = TokenLimits(with_template, 64, 8).check(problem)
    assert (prompt, why) == (tuple(with_template.encode_chat(kept)), "")


def test_numbers_may_be_answers_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": 2, "source": "school"}\n\n{"prompt": "1/4?", "answer": 0.25}\n')
    task = of(path)
    assert [task.problem(0).answer, task.problem(1).answer] == ["2", "0.25"]


def test_metadata_and_tests_go_with_the_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"q": "add", "unit": ["assert add(1, 2) == 3"], "meta": {"level": 2}}])
    task = of(path, prompt="q", answer="", tests="unit", metadata=["meta.level"])
    tests = {"statements": ["assert add(1, 2) == 3"], "pairs": [], "setup": ""}
    assert task.problem(0) == Problem("jsonl:0", "add", "", {"tests": tests, "metadata": {"meta.level": 2}})
    assert task.demonstration(task.problem(0), flawed=False, random=Random(0)) is None


def test_a_verifier_never_reads_the_rows(tmp_path: Path) -> None:
    task = of(tmp_path / "none.jsonl")
    task.warm_up()
    assert task.verify(Problem("jsonl:0", "?", "1/2", {}), "0.5").exact


def test_numbers_are_answers() -> None:
    fields = FieldsConfig()
    assert row_of({"prompt": "1+1?", "answer": 2, "source": "school"}, fields, "here") == Row("1+1?", "2")
    assert row_of({"prompt": "1/4?", "answer": 0.25}, fields, "here").answer == "0.25"


def test_values_that_json_cannot_hold_become_text() -> None:
    row = row_of({"prompt": "a", "answer": "b", "at": 1j}, FieldsConfig(metadata=["at"]), "here")
    assert row.metadata == {"at": "1j"}


def test_tests_may_stand_for_an_answer() -> None:
    fields = FieldsConfig(answer="", tests="tests")
    row = row_of({"prompt": "a", "tests": '{"inputs": ["1"], "outputs": ["2"]}'}, fields, "here")
    assert row == Row("a", "", CodeTests(pairs=(("1", "2"),)))
    with pytest.raises(BadRow, match="here: 'tests' has no tests that can be run"):
        row_of({"prompt": "a", "tests": []}, fields, "here")


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


def test_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(TaskError, match="temporary file") as caught:
        RowSpool(iter([Row("a", "b")]))
    assert "TMPDIR" in caught.value.fix


def test_a_users_function_yields_problems(tmp_path: Path) -> None:
    code = "    for n in count():\n        yield {'prompt': f'{n}+1=', 'answer': n + 1}"
    (tmp_path / "task.py").write_text(f"from itertools import count\ndef problems():\n{code}")
    rows = list(good_rows(PythonTask(kind="python", path=f"{tmp_path}/task.py:problems", rows_max=3)))
    assert [(row.prompt, row.answer) for row in rows] == [("0+1=", "1"), ("1+1=", "2"), ("2+1=", "3")]  # cut off
    (tmp_path / "task.py").write_text(
        "def problems():\n    yield {'prompt': 'a', 'answer': 'b'}\n    raise KeyError('oh')"
    )
    with pytest.raises(TaskError, match="raised an exception") as caught:
        list(good_rows(PythonTask(kind="python", path=f"{tmp_path}/task.py:problems")))
    assert "KeyError: 'oh'" in caught.value.cause
    (tmp_path / "task.py").write_text("import sys\ndef problems():\n    sys.exit(3)")
    with pytest.raises(TaskError, match="raised an exception") as caught:
        list(good_rows(PythonTask(kind="python", path=f"{tmp_path}/task.py:problems")))
    assert "SystemExit: 3" in caught.value.cause
    (tmp_path / "task.py").write_text("problems = [{'prompt': 'a', 'answer': 'b'}]")
    assert list(good_rows(PythonTask(kind="python", path=f"{tmp_path}/task.py:problems"))) == [Row("a", "b")]


def test_the_rows_read_so_far_are_counted(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    rows = Rows(jsonl(tmp_path / "rows.jsonl"))
    assert rows.rows_read == 0
    assert rows.problem_count == rows.rows_read == 3
