"""Test the terminal view of a run, also before and after an operator's action."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rollcast.cli.actions import outcome, preview_lines
from rollcast.cli.view import PlainView, age_words, line, phase_of, render, sparkline, summary_table
from rollcast.cli.watch import lasting_alerts
from tests.coordinator.sample_status import peer, sample_status


def text_of(renderable: Any, width: int = 140) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def test_screen_shows_the_key_figures() -> None:
    shut_out = peer("peer-4", quarantined=True, active_version=None, version_lag=None)
    status = sample_status(waiting_for="rollouts of version 87", waiting_since_s=3.0, next="2 groups", peers=[shut_out])
    text = text_of(render(status, {"peer-3": -9}))
    for expected in (
        "local · 2:11",
        "step 87/200",
        "waiting for rollouts of version 87, 0:03 so far; next: 2 groups",
        "0 ▂ 14%",
        "S = 4, needed 2",
        "age        2.1 steps, 2.1 s: train 0.1 broadcast 0.4 queue 0.9 generate 0.6 return 0.1 s",
        "quarantined",
        "dropped: 96 lease_expired, 41 stale",
        "ended: peer-3 (status -9)",
        "78.3%",
    ):
        assert expected in text


def test_a_wait_for_the_learner_is_shown_only_when_its_step_takes_long() -> None:
    def shown(**changes: Any) -> str:
        waits = {"waiting_for": "the learner (step 3 of 9)", "next": "", "learner_phase": "training", "t_train_s": 20.0}
        return line(sample_status(**(waits | changes)))

    assert "waiting" not in shown(waiting_since_s=50.0)
    assert shown(waiting_since_s=70.0).endswith("waiting for the learner (step 3 of 9), 1:10 so far")
    assert "waiting for the learner" in shown(waiting_since_s=5.0, learner_phase="publishing")
    assert "waiting for a peer to join" in shown(waiting_for="a peer to join", waiting_since_s=1.0)
    assert "waiting" not in shown(waiting_for="the ledger to record batch 4", waiting_since_s=0.9)


def test_screen_shows_late_policy_and_kappa() -> None:
    def screen(**changes: Any) -> str:
        return text_of(render(sample_status(staleness=sample_status()["staleness"] | changes), {}))

    late = {"corrected": 17, "waits": 3, "waits_in_vain": 1, "waited_s": 4.25}
    assert "late ones are corrected up to 6: 17" in screen(late_policy="correct", age_max=6, late=late)
    assert "batches wait for late groups: 3 times, 4.2 s" in screen(late_policy="wait", late=late)
    assert "published every 2 steps, as broadcasts allow" in screen(publish_auto=True, publish_every_steps=2)


def test_age_is_shown_as_far_as_known() -> None:
    assert age_words(None) == "-"
    assert age_words({"age_steps": None, "age_s": None}) == "-"
    assert age_words({"age_steps": 1.25, "age_s": None}) == "1.2 steps"


def test_names_cannot_draw_on_the_screen_and_many_are_counted() -> None:
    evil = peer("[/red]x", parents=["[bold]", "b", "c", "d"])
    text = text_of(render(sample_status(peers=[evil]), {}))
    assert "[/red]x" in text
    assert "[bold], b + 2" in text


def test_screen_before_anything_is_known() -> None:
    empty = sample_status(
        newest_version=None,
        reward_train=None,
        reward_before=None,
        staleness_histogram={},
        staleness_needed=None,
        t_bcast_s={"p50": None, "p95": None, "last": None},
        peers=[],
        peer_byte_share=None,
        learner_utilisation=None,
        reward_history=[],
    )
    assert "version -" in text_of(render(empty, {}))
    assert "reward -" in line(empty)


def test_line() -> None:
    shown = line(sample_status(waiting_since_s=1.8))
    assert shown.startswith("[2:11] training: step 87/200  version 87  reward ")
    assert "T_bcast p95 0.391 s  12480 tokens/s  peers 2  waiting for 3 of 32 groups" in shown


def test_a_start_is_shown_when_a_line_is_due() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    view = PlainView(console)
    for rows in (1, 2, 3):
        view.starting(f"loading the task: {rows} rows read")
    console.file.close()
    assert console.export_text() == "starting    loading the task: 1 rows read\n"


@given(st.lists(st.floats(-1, 2), max_size=300), st.integers(1, 80))
def test_sparkline_fits(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


@pytest.mark.parametrize(("values", "drawn"), [([], ""), ([0.0, 1.0], "▁█"), ([0.0, 0.0, 1.0, 1.0], "▁▁██")])
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_summary_table() -> None:
    summary = {
        "reward_before": 0.3,
        "reward_after": 0.9,
        "exact_before": 0.29,
        "exact_after": 0.91,
        "staleness_limit": 4,
        "staleness_max_trained": 2,
        "staleness": {"split": None},
        "peer_byte_share": 0.66,
        "rollouts": {"issued": 190, "trained": 80, "turns": 90, "open": 0, "dropped": {"stale": 20}},
        "episodes": {"ended": {"turns": 9, "done": 31}},
        "learner_utilisation": None,
        "t_bcast_s": {"p50": 0.1, "p95": None},
        "wall_s": 100.0,
    }
    text = text_of(summary_table(summary))
    assert "0.300 -> 0.900" in text
    assert "0.290 -> 0.910" in text
    assert "20 stale" in text
    assert "31 done, 9 turns" in text
    assert "0.100 / - s" in text
    assert "2 (S = 4)" in text
    lowered = text_of(summary_table(summary | {"staleness_limit": 1}))
    assert "2 (S = 1 at the end; the limit was 2 or more when it was trained)" in " ".join(lowered.split())


def test_peers_that_are_not_listed_are_counted() -> None:
    status = sample_status(peers_left_out=9488)
    assert "and 9488 more" in text_of(render(status, {}))


def test_how_peers_are_reached_is_shown_once_one_cannot_be_dialled() -> None:
    assert "reached" not in text_of(render(sample_status(), {}))
    peers = [peer("peer-1"), peer("peer-2", reachability="hole-punchable")]
    text = text_of(render(sample_status(peers=peers), {}))
    assert "reached" in text
    assert "hole-punchable" in text


def test_a_peer_takes_one_line_of_a_narrow_terminal() -> None:
    busy = peer("peer-1", state="generating", accepted=16360, parents=["peer-2", "origin", "peer-3"])
    text = text_of(render(sample_status(peers=[busy]), {}), width=80)
    (row,) = (line for line in text.splitlines() if "peer-1" in line)
    assert "16360" in row
    assert "…" in row  # of the names, which give way
    assert all(name in text for name in ("tokens/s", "accepted", "dropped"))


def test_a_preview_is_a_sentence_a_table_and_warnings() -> None:
    none: dict[str, Any] = dict.fromkeys(
        ("utilisation", "steps_per_hour", "workers_on", "usd_per_hour", "t_bcast_s", "staleness_needed")
    )
    answer = {
        "sentence": "Fewer.",
        "now": {**none, "utilisation": 0.951, "workers_on": 3},
        "then": {**none, "utilisation": 0.5},
        "warnings": ["few"],
    }
    assert preview_lines(answer) == [
        "Fewer.",
        "                       now      then",
        "learner busy           95%       50%",
        "workers on               3         -",
        "warning: few",
    ]


def test_the_learners_phase_is_a_word() -> None:
    assert [phase_of({"learner_phase": phase}) for phase in ("", "warm_start")] == ["starting", "warm start"]


def test_outcome_lists_done_and_failed_peers() -> None:
    answer = {"done": ["a"], "failed": [{"peer": "b", "error": "it is banned"}]}
    assert outcome("pin_on", ["a", "b"], answer) == ["a: pinned on", "b: not changed: it is banned"]


NO_REWARD = {
    "id": "no_reward",
    "severity": "warning",
    "text": "The reward has been 0 for 20 steps: the policy has solved nothing.",
    "fix": "Read answers with `rollcast samples --wrong`.",
    "since_s": 12.0,
}
WARNING = "warning: The reward has been 0 for 20 steps: the policy has solved nothing. Read answers with `rollcast samp"


def test_alerts_reach_the_person_at_the_terminal() -> None:
    status = {**sample_status(), "alerts": [NO_REWARD]}
    assert "The reward has been 0 for 20 steps" in text_of(render(status, {}))
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    view = PlainView(console)
    for _ in range(3):
        view.update(status, {})
    console.file.close()
    assert console.export_text().count(WARNING) == 1, "a log needs each alert once"


def test_only_alerts_that_last_are_shown() -> None:
    passing = NO_REWARD | {"id": "slow", "since_s": 2.0}
    assert lasting_alerts({"alerts": [NO_REWARD, passing]}) == [NO_REWARD]
    assert lasting_alerts(None) == []
