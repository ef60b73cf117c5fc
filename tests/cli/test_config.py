from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.config import show, validate
from rollcast.runtime.errors import ConfigError, ModelError, TaskError
from tests.policy.hub.hub_files import FAMILIES, model_folder, random_params


def a_run(folder: Path, *, held_out: str = "") -> Path:
    rows = "".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(80))
    (folder / "numbers.jsonl").write_text(rows)
    task = f'[coordinator.task]\nkind = "jsonl"\npath = "{folder}/numbers.jsonl"\ncheck = {{ kind = "exact" }}\n'
    (folder / "run.toml").write_text(f"[coordinator]\n{held_out}\n{task}")
    return folder / "run.toml"


def test_a_file_is_checked_with_its_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate(a_run(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "problems to train on; problems for evaluation: 10 (held_out)\n" in shown
    assert "valid configuration of up" in shown


def test_a_setting_is_checked_as_it_would_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate(a_run(tmp_path), setting=("coordinator.held_out_problems=7",)) == 0
    assert "7 (held_out)" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="1 problem"):
        validate(a_run(tmp_path), setting=("coordinator.held_out=7",))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("learner.lr", "'learner.optimiser.learning_rate'?"),
        ("learner.optimiser.lr", "'learner.optimiser.learning_rate'?"),
        ("learner.beta", "'learner.objective.kl_coefficient'?"),
        ("coordinator.sampling.max_new_tokens", "'coordinator.sampling.new_tokens_max'?"),
        ("coordinator.run.num_generations", "'coordinator.run.samples_per_group'?"),
    ],
)
def test_the_names_of_other_trainers_lead_to_the_key(tmp_path: Path, typed: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(a_run(tmp_path), setting=(f"{typed}=1",))
    assert f"unknown key '{typed}' (did you mean {meant}" in caught.value.cause


def test_what_would_end_the_start_is_found_and_the_fix_says_where_the_key_stands(tmp_path: Path) -> None:
    file = a_run(tmp_path, held_out="held_out_problems = 41")
    with pytest.raises(TaskError, match="too few problems") as caught:
        validate(file)
    assert f"set coordinator.held_out_problems to at most 40 (in {file})" in caught.value.fix
    assert validate(file, task=False) == 0


def test_a_missing_file_names_the_key_with_its_section(tmp_path: Path) -> None:
    file = a_run(tmp_path)
    (tmp_path / "numbers.jsonl").unlink()
    with pytest.raises(TaskError, match="cannot read the data file") as caught:
        validate(file)
    assert caught.value.fix == f"correct coordinator.task.path (in {file})"


def test_the_published_model_that_a_learner_starts_from_is_checked(tmp_path: Path) -> None:
    file, model = a_run(tmp_path), tmp_path / "model"
    file.write_text(f'{file.read_text()}[learner]\ninit_from = "{model}"\n')
    with pytest.raises(ModelError, match="there is no model folder"):
        validate(file, task=False)
    model_folder(model, FAMILIES["qwen3"], random_params(FAMILIES["qwen3"]))
    assert validate(file, task=False) == 0
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError):
        validate(file, task=False)


def test_a_file_of_another_role_is_named(tmp_path: Path) -> None:
    file = a_run(tmp_path)
    with pytest.raises(ConfigError, match="is not a configuration of learner") as caught:
        validate(file, role="learner")
    assert (caught.value.cause, "rollcast up" in caught.value.fix) == ("it has the sections of up", True)


def test_long_keys_are_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert show(role="up") == 0
    assert "coordinator.membership.no_peer_timeout_s = " in capsys.readouterr().out


def test_keys_without_a_default_are_listed_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(role="gateway") == 0
    assert capsys.readouterr().out.startswith("core (required)\n")
    assert show(role="peer") == 0
    shown = capsys.readouterr().out
    assert "engine.python (not set)\n" in shown
    assert "= null" not in shown
