from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.stores.sqlite import Ledger
from rollcast.cli.explain import DIFFERENT, explain, replay, why
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.recovery import test_replay
from tests.coordinator.report import test_wall_time
from tests.coordinator.stores import test_story


async def test_explain_prints_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await test_story.a_run(RunFolder(tmp_path).ledger)
    assert explain("rollout", "1", run_folder=tmp_path) == 0
    shown = capsys.readouterr().out
    assert "rollout 1" in shown
    assert re.search(r"segments: \d+ tokens? by \S+ with version \d", shown)
    assert "fate: trained in step 1" in shown
    assert explain("rollout", "1", run_folder=tmp_path, json_output=True) == 0
    story = json.loads(capsys.readouterr().out)
    assert story["subject"] == "rollout 1"
    assert [line["what"] for line in story["lines"]][-1] == "added rollout 1 to the batch of step 1"


async def test_explain_writes_names_and_sentences_where_json_has_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    await test_story.a_run(RunFolder(tmp_path).ledger)
    assert explain("step", "1", run_folder=tmp_path) == 0
    shown = capsys.readouterr().out
    assert "rollouts by peer: atlas: 2" in shown
    assert "learner waited (step 1): store 0.015 s, generate for atlas 2 s" in shown
    assert "reward_mean" in shown
    assert not set("{}[]") & set(shown)
    assert explain("step", "1", run_folder=tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["rollouts_by_peer"] == {test_story.work.PEER: 2}


def test_explain_shows_what_an_error_means_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("RC302", run_folder=tmp_path / "none") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("RC302 WrongKey\n")
    assert "What to do." in shown
    assert explain("status", "77", run_folder=tmp_path / "none", json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["subject"] == "Exit status 77"
    assert "RC302" in told["text"]


async def test_why_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await test_wall_time.a_run(RunFolder(tmp_path).ledger)
    assert why(tmp_path) == 0
    assert "training" in capsys.readouterr().out
    assert why(tmp_path, json_output=True) == 0
    account = json.loads(capsys.readouterr().out)
    assert sum(share["share"] for share in account["shares"]) + account["unaccounted"] == pytest.approx(1.0)
    assert abs(account["unaccounted"]) < 0.01


async def test_why_before_a_learner_has_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await Ledger.open(tmp_path / "store.sqlite").close()
    assert why(tmp_path) == 0
    assert capsys.readouterr().out == "No step was trained yet: no learner has reported to this run.\n"
    assert why(tmp_path, since="1h") == 0
    assert "nothing in the last 1h" in capsys.readouterr().out
    assert why(tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 0


async def test_why_says_what_the_learner_does_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = LearnerLives()
    began = {"life_began_unix_s": 43_200.0, "life_starting_s": 5.0}
    lives.observe(began | {"life_s": 5.0}, "warm_start", "step 1 of at most 400")
    ledger = Ledger.open(RunFolder(tmp_path).ledger)
    await ledger.set_meta(LEARNER_LIVES, lives.to_json())
    await ledger.close()
    assert why(tmp_path) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "At 12:00:05 UTC the learner reported that its warm start has begun: step 1 of at most 400."
    lives.observe(began | {"life_s": 95.0, "life_warm_start_s": 90.0}, "warm_start", "step 37 of at most 400")
    ledger = Ledger.open(RunFolder(tmp_path).ledger)
    await ledger.set_meta(LEARNER_LIVES, lives.to_json())
    await ledger.close()
    assert why(tmp_path) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        "At 12:01:35 UTC the learner reported that its warm start has run for 1 min 30 s, since 12:00:05 UTC: "
        "step 37 of at most 400."
    )
    assert any(line.split()[:3] == ["warm", "start", "90.0"] for line in rest)
    assert why(tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["doing"]["phase"] == "warm_start"
    lives.observe(began | {"life_s": 105.0, "life_warm_start_s": 90.0}, "training", "step 1 of 3")
    ledger = Ledger.open(RunFolder(tmp_path).ledger)
    await ledger.set_meta(LEARNER_LIVES, lives.to_json())
    await ledger.close()
    assert why(tmp_path) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == ("No step has ended yet. Since 12:01:45 UTC, which is not counted below: training (step 1 of 3).")


@pytest.mark.parametrize("since", ["5", "h", "-1h", "1w", "1.2.3s"])
def test_malformed_duration_is_refused(tmp_path: Path, since: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        why(tmp_path, since=since)


def test_replay_reports_whether_decisions_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    entries, status = test_replay.a_recorded_run(folder)
    test_replay.write(folder, entries)
    assert replay(tmp_path) == 0
    assert "every decision is the same" in capsys.readouterr().out
    test_replay.write(folder, [*entries[:2], *entries[3:]], incarnation=2)
    assert replay(tmp_path, json_output=True) == DIFFERENT
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["incarnation"], replayed["identical"]) == (2, False)
    assert replay(tmp_path, life=1, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["status"] == json.loads(json.dumps(status))


def test_replay_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no flight record"):
        replay(tmp_path)
