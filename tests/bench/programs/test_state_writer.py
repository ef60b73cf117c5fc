"""Test the program that measures how fast versions and checkpoints are written."""

from __future__ import annotations

from pathlib import Path

from bench.programs.state_writer import checkpointing, freezing
from tests.learner.tiny import MODEL


def test_a_small_model_gives_every_figure_and_leaves_no_file(tmp_path: Path) -> None:
    found = freezing(MODEL.model_copy(update={"precision": "bfloat16"}), tmp_path)
    assert found.keys() >= {"freeze_gb_s", "freeze_stop_share", "freeze_page_cache_ratio"}
    assert all(value >= 0.0 for value in found.values())
    assert found["freeze_gb_s"] > 0.0
    assert not list(tmp_path.iterdir())


def test_a_small_state_is_saved_restored_and_removed(tmp_path: Path) -> None:
    found = checkpointing(MODEL, tmp_path)
    assert found.keys() >= {"checkpoint_stop_share", "checkpoint_save_disk_ratio", "checkpoint_restore_disk_ratio"}
    assert all(value >= 0.0 for value in found.values())
    assert not list(tmp_path.iterdir())
