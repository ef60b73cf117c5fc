from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.simulation.simulate import FAULT_NAMES, simulate_fleet
from rollcast.runtime.errors import ConfigError
from rollcast.sim.faults import KINDS
from rollcast.sim.mutants.gate import MUTANTS
from rollcast.sim.mutants.planting import planted


def test_it_prints_an_outcome_and_a_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_fleet(peers=20, hours=0.1, seed=3) == 0
    first = capsys.readouterr().out
    for word in ("learner steps", "rollouts", "T_bcast", "0 violations", "interpreted", "digest"):
        assert word in first
    assert simulate_fleet(peers=20, hours=0.1, seed=3, json_output=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["digest"] in first
    assert document["violations"] == []


def test_violation_is_printed_and_sets_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(one for one in MUTANTS if one.name == "announced-before-pushed")
    with planted(bug):
        assert simulate_fleet(standard_mix=True, hours=0.005, faults="all") == 1
    assert "I12 (a half-written version is invisible" in capsys.readouterr().out


def test_a_standby_is_simulated_beside_the_leader(capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for standby in (False, True):
        assert simulate_fleet(standard_mix=True, hours=0.01, standby=standby, json_output=True) == 0
        digests.add(json.loads(capsys.readouterr().out)["digest"])
    assert len(digests) == 2


def test_workers_are_divided_among_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_fleet(peers=6, cells=3, hours=0.1, faults="kill-cell", json_output=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trained"] > 0
    assert set(document["faults"]) == {"kill-cell"}


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError):
        simulate_fleet(peers=0)
    with pytest.raises(ConfigError):
        simulate_fleet(standard_mix=True, peers=4)
    for cells in (-1, 5):
        with pytest.raises(ConfigError, match="cannot be divided"):
            simulate_fleet(peers=4, cells=cells)
    with pytest.raises(ConfigError, match="earthquake"):
        simulate_fleet(peers=4, hours=0.01, faults="earthquake")


def test_compiled_cores_that_are_missing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcast.sim.compiled.FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="the cores are not compiled"):
        simulate_fleet(peers=4, hours=0.01, compiled=True)


def test_help_names_every_kind_of_fault() -> None:
    assert tuple(KINDS) == FAULT_NAMES
