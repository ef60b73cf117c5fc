from __future__ import annotations

import json
from pathlib import Path

from coordinator.config.tasks import ExactCheck, JsonlTask, MathCheck
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.multi_task import Mixed, Part, named
from coordinator.tasks.rows import Rows


def rows(path: Path, prompt: str, check: ExactCheck | MathCheck) -> Rows:
    path.write_text("".join(json.dumps({"prompt": f"{prompt} {n}", "answer": "1/2"}) + "\n" for n in range(3)))
    return Rows(JsonlTask(kind="jsonl", path=path, check=check))


def test_each_problem_has_its_parts_verifier(tmp_path: Path) -> None:
    mixed = Mixed(
        [
            Part("strict", rows(tmp_path / "a.jsonl", "Half", ExactCheck())),
            Part("maths", rows(tmp_path / "b.jsonl", "Part", MathCheck())),
        ]
    )
    problem = Problem("jsonl:0", "Half 0", "1/2", {})
    assert not mixed.verify(named("strict", problem), "0.5").exact
    assert mixed.verify(named("maths", problem), "0.5").exact
    assert not mixed.verify(problem, "0.5").exact  # the first part's
    assert mixed.wording() == ("Half ", "Part ")
    assert set(mixed.characters()) == set("Half Part 012/")
    assert not mixed.starts_processes
