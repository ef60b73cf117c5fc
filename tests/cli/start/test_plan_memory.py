from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.main import app
from rollcast.cli.start.plan_memory import as_json, plan_of, summary
from rollcast.policy.shapes import parameter_count
from rollcast.policy.sizing.hardware import CATALOGUE
from rollcast.runtime.errors import ConfigError
from tests.policy.hub.hub_files import model_folder, random_params
from tests.policy.tiny import TINY

CONFIGS = Path(__file__).parents[3] / "configs"
MATH = CONFIGS / "qwen3-4b-math.toml"

SEVERAL_HOSTS = (
    "learner.distributed.processes=4",
    'learner.distributed.coordinator_address="host-0:7600"',
    "learner.distributed.shared_run_folder=true",
)


def run(*arguments: str) -> int:
    return int(app(("plan-memory", *arguments), exit_on_error=False, result_action="return_value") or 0)


def test_json_has_bytes_by_component_and_fitting_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(MATH), "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"] == 4_022_468_096
    assert plan["learner"]["resident"]["parameters (float32)"] == 4 * plan["parameters"]
    assert plan["peer"]["resident"]["weights"] == 2 * plan["parameters"]
    assert {"prefill", "decode"} <= plan["peer"]["phases"].keys()
    assert set(plan["learner_fits"]) == set(plan["peer_fits"]) == {one.name for one in CATALOGUE}


def test_progress_is_shown_on_a_terminal_beside_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(MATH), "--json") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any output for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    assert run(str(MATH), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["parameters"] == 4_022_468_096
    assert "comparing hardware" in captured.err


@pytest.mark.parametrize("file", [MATH, CONFIGS / "qwen3-8b-lora.toml"])
def test_shipped_files_quote_the_present_plan(file: Path) -> None:
    text = " ".join(line.lstrip("# ") for line in file.read_text().splitlines())
    for line in summary(plan_of(file)):
        assert line in text, line


def test_default_output_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(MATH)) == 0
    shown = capsys.readouterr().out
    assert "4.02 billion parameters" in shown
    assert "gradients (float32)" in shown
    assert "host memory: learner" in shown


def test_settings_and_attention_count() -> None:
    plain = plan_of(MATH, fused=False)
    fused = plan_of(MATH)
    offloaded = plan_of(
        MATH,
        (
            "learner.optimiser.state_dtype=float32",
            "learner.optimiser.offload=false",
        ),
    )
    assert plain.learner.peak > fused.learner.peak
    assert offloaded.learner.peak > fused.learner.peak


def test_reported_log_probabilities_and_several_hosts_count() -> None:
    one, several = plan_of(MATH), plan_of(MATH, SEVERAL_HOSTS)
    assert "behaviour" in plan_of(MATH, ('learner.behaviour="reported"',)).learner.phases, "some rollouts are audited"
    unaudited = plan_of(MATH, ('learner.behaviour="reported"', "learner.audited_rollouts=0"))
    assert "behaviour" not in unaudited.learner.phases
    assert several.learner.host_peak == pytest.approx(one.learner.host_peak / 4)
    assert any("GiB on each of 4 hosts, origin" in line for line in summary(several))


def test_published_states_take_the_learners_host_where_they_fit() -> None:
    plan = plan_of(MATH)
    state = plan.learner_states["state that is published"]
    assert sum(plan.learner_states.values()) == 7 * state, "S + 2 = 5, the next one, and a squashed delta's"
    words = f"and up to {7 * state / 2**30:.0f} GiB of published states where they fit"
    assert any(words in line for line in summary(plan))
    unsquashed = plan_of(MATH, ("learner.publish.squash_versions=0",))
    assert sum(unsquashed.learner_states.values()) == 6 * state
    for setting in ("learner.publish.states_in_memory=false", "learner.publish.deltas=false"):
        assert plan_of(MATH, (setting,)).learner_states == {}
    assert as_json(plan)["learner"]["host_states_where_they_fit"] == plan.learner_states


def test_states_in_memory_count_on_the_hosts_of_origin_and_peer() -> None:
    plan = plan_of(MATH)
    assert plan.peer is not None
    assert set(plan.origin_host) == {"state held in memory", "state made while that one is read"}
    on_disk = plan_of(MATH, ("origin.store.states_in_memory=false", "peer.store.states_in_memory=false"))
    assert on_disk.peer is not None
    state = plan.origin_host["state held in memory"]
    assert sum(plan.origin_host.values()) - sum(on_disk.origin_host.values()) == state
    assert plan.peer.host_peak - on_disk.peer.host_peak == state


def test_learner_file_and_model_folder_are_accepted(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", TINY, random_params(TINY))
    file = tmp_path / "learner.toml"
    file.write_text(f'init_from = "{folder}"\n')
    assert plan_of(file).model == TINY


def test_supervised_training_has_no_peers_and_publishes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_folder(tmp_path / "model", TINY, random_params(TINY))
    file = tmp_path / "sft.toml"
    file.write_text(f'init_from = "{folder}"\nexport = "out"\n[data]\npath = "chats.jsonl"\n')
    plan = plan_of(file)
    assert plan.model == TINY
    assert plan.peer is None
    assert set(plan.learner.phases) == {"gradients", "optimiser step"}
    assert "a version that is published" not in plan.learner.resident
    assert plan.disks["sft"]["export"] == 2 * parameter_count(TINY)
    longer, spread = plan_of(file, ("row_tokens=65536",)), plan_of(file, ("mesh.fsdp=2",))
    assert longer.learner.peak > plan.learner.peak > spread.learner.peak
    assert run(str(file), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {"sft", "sft_fits", "disk"} < set(document)
    assert "peer" not in document
    assert run(str(file)) == 0
    assert "sft, each device" in capsys.readouterr().out
    file.write_text('[data]\npath = "chats.jsonl"\n')
    assert run(str(file)) == 0
    assert "sft builds from the file; for a published one set init_from" in capsys.readouterr().out


def test_a_tokenizer_that_is_built_at_the_start_is_assumed_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("local.toml", "local-lora.toml", "learner.toml"):
        assert run(str(CONFIGS / file)) == 0, file
        shown = capsys.readouterr().out
        assert "assumed: 256 tokens" in shown
        assert "< 0.01" in shown, "what is small does not look like nothing"
        assert " 0 GiB" not in shown
    assert as_json(plan_of(CONFIGS / "local.toml"))["vocabulary_assumed"] == 256
    assert as_json(plan_of(CONFIGS / "local.toml", ("learner.model.vocabulary_size=22",)))["vocabulary_assumed"] is None
    assert as_json(plan_of(MATH))["vocabulary_assumed"] is None


def test_a_published_tokenizer_of_unknown_size_is_an_error() -> None:
    with pytest.raises(ConfigError, match="vocabulary is not known"):
        plan_of(CONFIGS / "local.toml", ('coordinator.tokenizer.folder="published"',))


def test_a_file_without_a_model_is_an_error() -> None:
    with pytest.raises(ConfigError, match="is the configuration of a coordinator"):
        plan_of(CONFIGS / "coordinator.toml")
    with pytest.raises(ConfigError, match="is the configuration of a peer"):
        plan_of(CONFIGS / "peer.toml")
