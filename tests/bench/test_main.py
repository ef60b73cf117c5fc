"""Test the command line of the benchmarks, and the figures of a run."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench.__main__ as main
from bench.machine import Outcome, alone, describe_machine
from bench.runs import figures_of, trained_twice
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


def test_only_the_named_benchmark_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def importing(name: str) -> SimpleNamespace:
        imported.append(name)
        return stand_in(lambda _arguments: Outcome({}, {}))

    monkeypatch.setattr(main, "BENCHES", {"folder": {"one": "text", "other": "text"}})
    monkeypatch.setattr(main.importlib, "import_module", importing)
    assert main.main(["other"]) == 0
    assert imported == ["bench.folder.other"]


def test_every_benchmark_can_be_imported_and_has_options() -> None:
    for folder, benches in main.BENCHES.items():
        for name in benches:
            importlib.import_module(f"bench.{folder}.{name}").add_arguments(argparse.ArgumentParser())


def test_the_machine_is_described_without_naming_it() -> None:
    assert set(describe_machine()) == {"cores", "memory_gib", "processor", "python", "openssl", "rollcast"}


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
    quoted = set(re.findall(r"python -m bench (\w+)", FIGURES.read_text()))
    assert quoted
    assert quoted <= {name for benches in main.BENCHES.values() for name in benches}


def ledger(folder: Path, batches: list[tuple[int, int]]) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite")) as database, database:
        database.execute("CREATE TABLE batch_rollouts (step INTEGER, rollout_id INTEGER)")
        database.executemany("INSERT INTO batch_rollouts VALUES (?, ?)", batches)


def summary(folder: Path) -> dict[str, Any]:
    return {
        "run_folder": str(folder),
        "reward_before": 0.3,
        "reward_after": 0.9,
        "exact_before": 0.29,
        "exact_after": 0.89,
        "warm_start_s": 20.0,
        "wall_s": 80.0,
        "staleness_limit": 4,
        "staleness_max_trained": 3,
        "peer_byte_share": 0.6,
        "learner_utilisation": 0.5,
        "t_bcast_s": {"p50": 0.1, "p95": 0.2},
        "rollouts": {"issued": 10, "trained": 6, "turns": 0, "open": 1, "dropped": {"stale": 2}},
    }


def test_rollouts_trained_twice_are_counted_in_the_ledger(tmp_path: Path) -> None:
    ledger(tmp_path, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
    assert trained_twice(tmp_path) == 2


def test_unaccounted_rollouts_are_counted(tmp_path: Path) -> None:
    ledger(tmp_path, [(0, 1)])
    figures = figures_of(summary(tmp_path))
    assert figures["rollouts_unaccounted"] == 1
    assert figures["trained_twice"] == 0
    assert all(isinstance(value, (int, float)) for value in figures.values())
