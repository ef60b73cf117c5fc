"""Test the command that replays evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner.evaluation.export import Policy
from rollcast.cli.trust.audit import audit
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import CheckpointError, RunFolderError
from rollcast.wire.ids import Version
from tests.learner.audit.evidence_file import written
from tests.learner.tiny import MODEL


def kept(folder: Path, version: Version) -> Policy:
    if version > 4:
        raise CheckpointError("gone")
    return Policy(version, MODEL, initial_params(MODEL, version), "")


def test_each_verdict_is_replayed_with_the_weights_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("learner.audit.replay.published", kept)
    written(tmp_path / "evidence.jsonl", 1)
    assert audit(tmp_path, json_output=True) == 0
    (row,) = json.loads(capsys.readouterr().out)["records"]
    assert (row["rollout_id"], row["peers"], row["verdict"]) == (1, ["a", "b"], "confirmed")
    monkeypatch.setattr("learner.audit.replay.published", lambda folder, version: kept(folder, Version(9)))
    assert audit(tmp_path) == 0
    assert "a version is not kept" in capsys.readouterr().out


def test_a_run_without_evidence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path) == 0
    assert capsys.readouterr().out == f"No evidence against any peer was recorded in {tmp_path}.\n"
    assert audit(tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == {"records": []}


def test_evidence_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"other\.jsonl"):
        audit(tmp_path, tmp_path / "other.jsonl")
    with pytest.raises(RunFolderError, match=r"evidence\.jsonl"):
        audit(tmp_path / "no-such-run")
