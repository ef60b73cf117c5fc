from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.__main__ as main
from bench.machine import Outcome, alone, describe_machine
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

FIGURES = Path(__file__).parents[2] / "docs" / "figures.md"


def stand_in(run: object) -> SimpleNamespace:
    return SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--size", type=int, default=3), run=run)


def test_json_is_one_object_of_the_documented_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = stand_in(lambda arguments: Outcome({"size": arguments.size}, {"seconds": 1.5}))
    monkeypatch.setattr(main, "BENCHES", {"folder": {"one": "text"}})
    monkeypatch.setattr(main.importlib, "import_module", lambda _name: module)
    assert main.main(["one", "--size", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"bench", "settings", "machine", "figures"}
    assert (document["bench"], document["settings"], document["figures"]) == ("one", {"size": 7}, {"seconds": 1.5})


def test_errors_have_their_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_arguments: object) -> Outcome:
        raise ProcessFailed("the learner ended with status 1")

    monkeypatch.setattr(main, "BENCHES", {"folder": {"one": "text"}})
    monkeypatch.setattr(main.importlib, "import_module", lambda _name: stand_in(fail))
    assert main.main(["one"]) == ProcessFailed.exit_code
    assert "RC701" in capsys.readouterr().err


def test_the_machine_is_described_without_naming_it() -> None:
    assert set(describe_machine()) == {"cores", "memory_gib", "processor", "python", "rollcast"}


def test_benchmarks_that_fill_the_machine_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with alone(), pytest.raises(WaitTimedOut, match="another benchmark"), alone(timeout_s=0.0):
        pass
    with alone():
        pass
    assert "waiting" not in capsys.readouterr().err


def test_every_command_quoted_in_the_documentation_exists() -> None:
    quoted = {text.split()[3].strip("`,") for text in FIGURES.read_text().split("|") if "python -m bench" in text}
    assert quoted
    assert quoted <= {name for benches in main.BENCHES.values() for name in benches}
