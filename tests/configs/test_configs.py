"""Every configuration that is shipped or shown parses: those of README's processes, and those of docs/data.md,
whose tasks are loaded and whose commands are run.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import HuggingFaceTask
from coordinator.prompts.loading import _mixture
from learner.config import LearnerConfig
from rollcast.cli.files import guess_role, load
from rollcast.cli.main import app
from rollcast.runtime.config import parse_config

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()

FILES: dict[str, list[dict[str, Any]]] = {
    "raw.jsonl": [
        {"question": f"{n}+{n}=", "solution": {"final": f"${2 * n}$"}, "level": 1, "test": n} for n in range(20)
    ],
    "train.jsonl": [{"question": f"Add {n} to {n}.", "solution": {"final": 2 * n}, "level": 1} for n in range(1200)],
    "clean.jsonl": [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(1200)],
    "test.jsonl": [{"question": "7+7=", "solution": {"final": "14"}}],
    "samples.jsonl": [{"prompt": f"{n}+{n}=", "exact": n % 2 == 0} for n in range(20) for _ in range(2 - n // 19)]
    + [{"prompt": f"{n}+{n}=", "exact": n % 4 == 1} for n in range(20)],
    "programs.jsonl": [{"prompt": f"Add {n}.", "tests": [f"assert add(1) == {n + 1}"]} for n in range(1200)],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, rows in FILES.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", blocks("toml"), ids=lambda text: text.split("\n")[1])
def test_configurations(folder: Path, text: str) -> None:
    values = tomllib.loads(text)
    if text.startswith("# learner.toml"):
        parse_config(values, LearnerConfig, source="docs/data.md")
        return
    config = parse_config(values, CoordinatorConfig, source="docs/data.md")
    if not isinstance(config.task, HuggingFaceTask):
        mixture, sets = _mixture(config.model_copy(update={"held_out_problems": 8}))
        assert len(mixture.sample(20)) == 20
        assert list(sets) == ["held_out", *config.evaluation_sets]


def test_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks("sh")
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["rollcast", "curate"]
    app(words[1:], exit_on_error=False, result_action="return_value")
    assert "kept" in capsys.readouterr().out
    kept = [json.loads(line) for line in (folder / "clean.jsonl").read_text().splitlines()]
    assert kept
    assert all(0.1 <= one["pass_rate"] <= 0.9 and "$" not in one["answer"] for one in kept)
    removed = [json.loads(line) for line in (folder / "removed.jsonl").read_text().splitlines()]
    assert {one["reason"] for one in removed} >= {"contaminated"}


def test_every_command_and_option_named_here_is_there() -> None:
    shown = [shlex.split(line.split(" > ")[0]) for line in re.findall(r"^    (rollcast .*)$", PAGE, re.MULTILINE)]
    assert len(shown) == 8
    for words in shown:
        command, bound, *_ = app.parse_args(words[1:], exit_on_error=False)
        assert command.__name__ in ("evaluate", "samples")
        assert bound.args


CONFIGS = Path(__file__).parents[2] / "configs"

ROLES = {
    "local.toml": "up",
    "local-lora.toml": "up",
    "qwen3-4b-math.toml": "up",
    "qwen3-8b-lora.toml": "up",
    "coordinator.toml": "coordinator",
    "learner.toml": "learner",
    "origin.toml": "peer",
    "peer.toml": "peer",
    "sft.toml": "sft",
}

#: Not of a process: what `rollcast capacity` plans for (tests/capacity/questions/test_scenario.py).
OTHERS = {"demand.toml"}


def test_none_is_forgotten() -> None:
    assert {path.name for path in CONFIGS.glob("*.toml")} == {*ROLES, *OTHERS}


@pytest.mark.parametrize("name", ROLES)
def test_parses_as_the_process_it_is_for(name: str) -> None:
    path = CONFIGS / name
    assert guess_role(path) == ROLES[name]
    load(path, guess_role(path))
