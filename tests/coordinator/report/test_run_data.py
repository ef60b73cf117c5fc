"""What a report finds in a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.report.run_data import STEPS_SHOWN, read_facts
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.report.sample_run import ANN, sample_run


def test_peers_steps_and_events_are_found(tmp_path: Path) -> None:
    facts = read_facts(sample_run(tmp_path))
    assert [(one.name, one.trained, one.dropped, dict(one.reasons)) for one in facts.peers] == [
        ("ann", 3, 0, {}),
        ("sums", 1, 1, {"too_old": 1}),
    ]
    assert facts.peers[0].peer_id == ANN
    assert len(facts.steps) == 40  # the line that was cut short is none
    assert [one.kind for one in facts.events] == ["peer_joined", "peer_joined"]
    assert facts.is_over


def test_many_steps_are_thinned_and_the_last_is_kept(tmp_path: Path) -> None:
    steps = read_facts(sample_run(tmp_path, steps=2001)).steps
    assert len(steps) <= STEPS_SHOWN + 1
    assert steps[-1]["step"] == 2001


def test_a_run_without_a_summary_has_what_is_known_so_far(tmp_path: Path) -> None:
    facts = read_facts(sample_run(tmp_path, over=False))
    assert not facts.is_over
    assert (facts.summary["step"], facts.summary["steps"], facts.summary["staleness_limit"]) == (40, 40, 4)


def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        read_facts(RunFolder(tmp_path))
