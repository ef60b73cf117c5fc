from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.durability import mutants


def figures(*arguments: str) -> dict[str, float]:
    parser = argparse.ArgumentParser()
    mutants.add_arguments(parser)
    return mutants.run(parser.parse_args(arguments)).figures


def test_a_planted_bug_is_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures("--only", "announced-before-pushed", "--clean", "0", "--seeds", "3")
    assert (found["planted"], found["found"], found["worst_seed"]) == (1, 1, 0)
    assert "announced-before-pushed: seed 0, I12" in capsys.readouterr().err


def test_what_clean_seeds_violate_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "violations", lambda seeds, _processes: iter([f"seed {seeds - 1}: I1"]))
    found = figures("--only", "none", "--clean", "7")
    assert (found["planted"], found["clean_seeds"], found["clean_violations"]) == (0, 7, 1)
    assert "seed 6: I1" in capsys.readouterr().err


def test_the_table_replaces_the_old_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{mutants.BEGIN}\nold\n{mutants.END}\nafter\n")
    bug = next(one for one in mutants.MUTANTS if one.name == "no-fencing")
    mutants.write_table(page, [mutants.Hunt(bug, 7, "I6", "seen"), mutants.Hunt(bug, None, "", "")])
    text = page.read_text()
    assert "| `no-fencing`: the fencing token of an upload is not compared | I6 | 7 | I6 |" in text
    assert "not found" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
