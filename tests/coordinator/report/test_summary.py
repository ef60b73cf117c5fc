"""Test the summary and the files that a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.report.summary import build_summary, smooth, step_metrics, write_summary
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.sample_status import sample_status

PROMISED = {
    "reward_before",
    "reward_after",
    "staleness_limit",
    "staleness_max_trained",
    "peer_byte_share",
    "rollouts",
    "learner_utilisation",
    "t_bcast_s",
    "wall_s",
}


def test_summary_has_the_documented_keys() -> None:
    summary = build_summary(sample_status(reward_after=0.93), CoordinatorConfig())
    assert summary.keys() >= PROMISED | {"run_id", "steps", "version", "seeds", "software"}
    assert summary["t_bcast_s"] == {"p50": 0.142, "p95": 0.391}
    assert summary["rollouts"]["dropped"]["stale"] == 41
    assert summary["wall_s"] == 131.0
    assert summary["seeds"] == {"run": 0}
    assert summary["staleness"]["split"]["queue_s"] == 0.9
    assert (summary["epoch"], summary["staleness"]["late_policy"], summary["staleness"]["age_max"]) == (0, "drop", 4)


def test_unknown_values_are_null() -> None:
    summary = build_summary({"phase": "stopped"}, CoordinatorConfig())
    assert summary["reward_before"] is None
    assert summary["staleness"]["split"] is None
    assert summary["rollouts"] == {"issued": 0, "accepted": 0, "trained": 0, "turns": 0, "open": 0, "dropped": {}}


def test_the_summary_is_written_with_its_picture(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").prepare()
    write_summary(folder, sample_status(reward_train=float("inf"), peer_byte_share=float("nan")), CoordinatorConfig())
    assert json.loads(folder.summary.read_text())["peer_byte_share"] is None
    assert folder.reward_plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("history", [[], [[1, 0.5]], [[1, -2.0], [2, 3.5]]])
def test_any_history_can_be_plotted(tmp_path: Path, history: list[list[float]]) -> None:
    folder = RunFolder(tmp_path / "run").prepare()
    status = sample_status(reward_history=history, reward_before=None, step=len(history))
    write_summary(folder, status, CoordinatorConfig())
    assert folder.reward_plot.exists()


def test_a_full_or_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gone")
    with pytest.raises(RunFolderError):
        write_summary(folder, sample_status(), CoordinatorConfig())


def test_a_line_has_the_learners_figures_and_the_runs() -> None:
    line = step_metrics(sample_status(), {"reward_mean": 0.5, "loss": 0.1, "train_s": 0.2})
    assert (line["reward"], line["loss"], line["t_bcast_last_s"], line["peers"]) == (0.5, 0.1, 0.137, 2)


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smooth([0.5]) == [0.5]
    assert smooth([2.0] * 5) == pytest.approx([2.0] * 5)
    assert smooth([]) == []
