"""The status of a run, computed from its state; how stale its rollouts are."""

from __future__ import annotations

import json

import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import SupplyPrompts
from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem, EvaluationRequested
from coordinator.core.events.events import (
    BatchRequested,
    LearnerStatusChanged,
    PeerLeft,
    PromptsSupplied,
    RunEnded,
    StepFinished,
)
from coordinator.core.events.operator_events import RunPaused
from rollcast.wire.ids import PeerId, Step, Version
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, settings, wants
from tests.coordinator.sample_status import sample_status


def words(core: CoordinatorCore, now: float) -> tuple[str, float, str]:
    waiting = core.waiting(now)
    return waiting.text, waiting.since_s, waiting.next


def test_every_wait_of_a_run_has_a_text_a_beginning_and_a_next() -> None:
    core = CoordinatorCore(settings(no_peer_timeout_s=60.0, groups_per_step=1))
    assert words(core, 0.0)[0] == "the first event"
    core.handle(joined("a"), 1.0)
    assert words(core, 4.0) == ("an origin to join", 3.0, "the learner publishes to it, and peers receive from it")
    core.handle(joined("origin", role="origin"), 5.0)
    assert words(core, 6.0)[:2] == ("the learner to connect", 1.0)
    core.handle(LearnerStatusChanged("starting", "compiling", {}), 6.0)
    assert words(core, 6.5)[:2] == ("the learner's first version (compiling)", 0.5)
    core.handle(LearnerStatusChanged("warm_start", "step 2 of at most 30", {}), 7.0)
    core.handle(LearnerStatusChanged("warm_start", "step 3 of at most 30", {}), 8.0)
    assert words(core, 9.0)[:2] == ("the learner's warm start (step 3 of at most 30)", 2.0)
    core.handle(LearnerStatusChanged("warm_start", "done after 3 steps", {"warm_start_s": 2.0}), 9.5)
    assert words(core, 9.75)[:2] == ("the learner's first version (done after 3 steps)", 0.25)
    core.handle(announced(0), 10.0)
    core.handle(LearnerStatusChanged("training", "", {}), 11.0)
    assert words(core, 12.0) == ("the learner (training)", 2.0, "the learner requests the batch of step 1")
    core.handle(BatchRequested(Step(0)), 13.0)
    batch = "prompt groups for the batch of step 1: 0 of 1 are ready"
    assert words(core, 14.0)[:2] == (f"{batch}; no peer can work yet", 1.0)
    core.handle(held("a", 0), 15.0)
    assert words(core, 16.0)[:2] == (f"{batch}; 0 rollouts in flight, 0 to be stored or scored", 3.0)
    key = EvaluationKey("held_out", Version(0), problems=1, samples=1, seed=3)
    core.handle(EvaluationRequested(key, (EvaluationProblem(1, (5, 6)),), 60.0), 16.0)
    assert words(core, 17.0) == (
        f"{batch}; peers generate an evaluation first",
        4.0,
        "peers that have started take groups for the batch",
    )
    core.handle(PeerLeft(PeerId("a"), "gone"), 20.0)
    assert words(core, 30.0) == ("a peer to join", 10.0, "the run stops with RC202 in 50 s")
    core.handle(RunEnded("stopped", False), 40.0)
    assert words(core, 50.0) == ("", 0.0, "the run is over: stopped")


def test_the_wait_names_the_lack_of_a_version_that_is_young_enough() -> None:
    world = World(groups_per_step=1, staleness_limit=0)
    world.start("a")
    world.handle(wants("a", 2))
    world.finish("a")
    world.handle(BatchRequested(Step(0)))
    world.handle(announced(1))
    world.handle(BatchRequested(Step(1)))
    assert world.core.waiting(0.0).text == (
        "prompt groups for the batch of step 2: 0 of 1 are ready; no peer holds version 1 or newer"
    )


def test_the_wait_names_a_task_without_more_problems() -> None:
    core = CoordinatorCore(settings())
    core.handle(joined("origin", role="origin"), 0.0)
    assert SupplyPrompts(4) in core.handle(joined("a"), 0.0)
    core.handle(PromptsSupplied(()), 0.0)
    core.handle(announced(0), 0.0)
    core.handle(held("a", 0), 0.0)
    core.handle(BatchRequested(Step(0)), 0.0)
    assert core.waiting(0.0).text.endswith("0 of 2 are ready; the task has no more problems")


def test_the_status_of_a_short_run() -> None:
    world = World(groups_per_step=1, steps=1)
    world.start("a", "b")
    world.handle(LearnerStatusChanged("training", "step 1", {"reward_before": 0.25}))
    world.handle(heartbeat("b", active=0, tokens_per_second=12.5, chunk_bytes_from_peers=300, chunk_bytes_sent=7))
    world.handle(heartbeat("a", active=0, tokens_per_second=7.5, chunk_bytes_from_origin=100))
    world.handle(wants("a", 1))
    world.handle(wants("b", 1))
    world.finish("a")
    world.finish("b")
    world.handle(BatchRequested(Step(0)))
    world.handle(StepFinished(Step(1), {"reward_mean": 0.5, "train_s": 9.0, "step_s": 10.0}))
    world.now = 20.0
    world.handle(announced(1))
    world.now = 21.0
    world.handle(held("a", 1))
    world.now = 22.0
    world.handle(held("b", 1))
    world.handle(PeerLeft(PeerId("b"), "stopped by its owner"))
    status = world.core.status(24.0).to_json()
    peers, staleness = status.pop("peers"), status.pop("staleness")
    assert status.pop("activation")["mode"] == "off"
    assert status.pop("peers_left_out") == 0
    assert status.pop("peers_by_state") == (
        {"role": "origin", "state": "joined", "count": 1},
        {"role": "peer", "state": "generating", "count": 1},
        {"role": "peer", "state": "left", "count": 1},
    )
    assert staleness["split"]["last"]["rollouts"] == 2
    assert status == {
        "run_name": "local",
        "t_train_s": None,  # the first step compiles
        "t_gen_p90_s": 0.0,
        "rollouts_per_step": 2,
        "run_id": "run",
        "phase": "training",
        "learner_phase": "training",
        "learner_detail": "step 1",
        "step": 1,
        "steps": 1,
        "stage": "",
        "newest_version": 1,
        "staleness_limit": 1,
        "publish_every_steps": 1,
        "epoch": 0,
        "reward_train": 0.5,
        "reward_before": 0.25,
        "reward_after": None,
        "exact_before": None,
        "exact_after": None,
        "warm_start_s": None,
        "warm_start_accuracy": None,
        "staleness_histogram": {"0": 2},
        "staleness_max_trained": 0,
        "staleness_needed": None,
        "t_bcast_s": {"p50": 0.0, "p95": 2.0, "last": 2.0},
        "tokens_per_s": 7.5,
        "waiting_for": "the learner to finish",
        "waiting_since_s": 24.0,
        "next": "the run ends",
        "rollouts": {
            "issued": 2,
            "accepted": 2,
            "trained": 2,
            "turns": 0,
            "open": 0,
            "dropped": {},
            "uploads_refused": {},
        },
        "episodes": {"open": 0, "turns": 0, "ended": {}, "begun_anew": {}, "failures": 0, "turns_mean": 1.0},
        "scoring": {
            "paused": "",
            "paused_s": 0.0,
            "waiting": 0,
            "failures": {},
            "last_failure": "",
            "unscorable_groups": 0,
        },
        "peer_byte_share": 0.75,
        "learner_utilisation": None,
        "learner_mfu": None,
        "learner_memory_peak_share": None,
        "learner_profile": None,
        "mismatch": None,
        "updates_skipped": 0,
        "updates_skipped_at": None,
        "evaluations": {},
        "reward_history": ((1, 0.5),),
        "elapsed_s": 24.0,
    }
    assert [(peer["name"], peer["role"], peer["state"], peer["parents"]) for peer in peers] == [
        ("origin", "origin", "joined", ()),
        ("a", "peer", "generating", ("origin",)),
        ("b", "peer", "left", ()),
    ]
    assert peers[1] | {"last_seen_s": 0} == {
        "peer_id": "a",
        "name": "a",
        "role": "peer",
        "state": "generating",
        "reason": "",
        "active_version": 1,
        "version_lag": 0,
        "tokens_per_s": 7.5,
        "open_slots": 0,
        "accepted": 1,
        "dropped": 0,
        "last_seen_s": 0,
        "chunk_bytes_from_origin": 100,
        "chunk_bytes_from_peers": 0,
        "chunk_bytes_sent": 0,
        "t_bcast_s": 1.0,
        "hardware": "cpu",
        "region": "",
        "concurrent_rollouts": 2,
        "cell_workers": None,
        "parents": ("origin",),
        "quarantined": False,
        "standby": False,
        "pin": "",
        "usd_per_hour": 0.0,
        "reachability": "dialable",
        "nat": "unknown",
        "swap_kind": "",
        "swap_paused_s": None,
        "swap_moved_bytes": None,
        "swap_read_back": False,
        "engine_devices": 0,
        "engine_versions": 0,
    }
    assert (peers[2]["reason"], peers[2]["tokens_per_s"]) == ("stopped by its owner", 0.0)


def test_the_status_is_json_with_the_keys_that_screens_read() -> None:
    world = World()
    world.start("a")
    status = json.loads(json.dumps(world.core.status(0.0).to_json()))
    sample = sample_status()
    assert status.keys() >= sample.keys()
    assert status["peers"][0].keys() >= sample["peers"][0].keys()
    assert status["rollouts"].keys() >= sample["rollouts"].keys()


def test_the_limit_needed_comes_from_what_was_measured() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 2))
    world.now = 0.5
    world.finish("a")  # 0.5 s each
    for step in (1, 2):
        world.handle(StepFinished(Step(step), {"step_s": 1.0, "wait_s": 0.6}))
    world.handle(announced(1))
    world.now = 0.75
    world.handle(held("a", 1))
    assert world.core.status(0.75).staleness_needed == 3  # (0.25 + 0.5) / 0.4 + 1, rounded up


@pytest.mark.parametrize(("learner_phase", "phase"), [("finished", "finished"), ("training", "stopped")])
def test_an_ended_run_is_finished_if_the_learner_reports_it(learner_phase: str, phase: str) -> None:
    world = World()
    assert world.core.status(0.0).phase == "starting"
    world.handle(LearnerStatusChanged(learner_phase, "", {}))
    world.handle(RunEnded("over", True))
    assert world.core.status(0.0).phase == phase


def test_of_very_many_peers_those_that_need_attention_are_listed_and_all_are_counted() -> None:
    world = World(validate_every_event=False)
    world.start()
    for number in range(600):
        world.handle(joined(f"p{number}"))
        world.handle(held(f"p{number}", 0))
    world.handle(joined("newcomer"))
    world.handle(PeerLeft(PeerId("p7"), "gone"))
    status = world.core.status(0.0)
    *listed, gone = status.peers
    assert (len(listed), status.peers_left_out) == (512, 1 + 600 - 512)
    assert (listed[0].name, listed[1].name, listed[-1].name, gone.state) == ("origin", "p0", "newcomer", "left")
    assert [(one.role, one.state, one.count) for one in status.peers_by_state] == [
        ("origin", "joined", 1),
        ("peer", "joined", 600),
        ("peer", "left", 1),
    ]


def test_evaluations_are_reported_by_set() -> None:
    world = World()
    figures = {
        "eval_held_out_pass_at_1": 0.5,
        "eval_held_out_pass_at_1_low": 0.4,
        "eval_hard_version": 8.0,
        "eval_s": 2.0,
    }
    world.handle(LearnerStatusChanged("training", "", figures))
    found = world.core.status(0.0).evaluations
    assert found == {"held_out": {"pass_at_1": 0.5, "pass_at_1_low": 0.4}, "hard": {"version": 8.0}}


def test_limits_in_force_and_what_ages_are_made_of() -> None:
    world = World(groups_per_step=1, late_policy="correct", late_steps_max=2, publish_every_steps=0)
    world.start("a")
    before = world.core.status(0.0).to_json()["staleness"]
    assert (before["split"]["last"], before["split"]["total"]["age_s"], before["split"]["steps"]) == (None, None, ())
    world.handle(wants("a", 2))
    world.finish("a")
    world.now = 2.0
    world.handle(BatchRequested(Step(0)))
    status = world.core.status(2.0).to_json()["staleness"]
    json.dumps(status)
    limits = ("limit", "age_max", "gate_broken_by", "late_policy", "publish_every_steps", "publish_auto")
    assert {name: status[name] for name in limits} == {
        "limit": 1,
        "age_max": 3,
        "gate_broken_by": 0,
        "late_policy": "correct",
        "publish_every_steps": 1,
        "publish_auto": True,
    }
    assert status["late"] == {"corrected": 0, "waits": 0, "waits_in_vain": 0, "waited_s": 0.0}
    assert status["split"]["last"]["age_s"] == 2.0
    assert [step["step"] for step in status["split"]["steps"]] == [0]
    assert status["split"]["parts"]["queue"] == {"at_most": (0,) * 7 + (2,) * 10, "sum_s": 4.0}


def test_idle_workers_of_a_paused_run_do_not_say_that_the_learner_has_enough() -> None:
    world = World()
    world.start("a")
    world.handle(heartbeat("a", state="idle", reason="the learner has all it can use"))
    (reason,) = (one.reason for one in world.core.status(0.0).peers if one.name == "a")
    assert reason == "the learner has all it can use"
    world.handle(RunPaused("power cut"))
    (reason,) = (one.reason for one in world.core.status(0.0).peers if one.name == "a")
    assert reason == "nothing to do now: the run is paused"


def test_a_cell_counts_no_steps_and_names_no_end_of_a_wait_for_peers() -> None:
    world = World(is_cell=True, no_peer_timeout_s=float("inf"))
    world.handle(joined("origin", role="origin"))
    world.handle(announced(0))
    assert words(world.core, world.now)[::2] == (
        "a peer to join",
        "it generates for the head, whose run goes on meanwhile",
    )
    assert world.core.run_status(world.now).steps == 0


def test_long_times_until_the_run_stops_are_in_minutes() -> None:
    core = CoordinatorCore(settings(no_peer_timeout_s=3600.0, groups_per_step=1))
    for event in (joined("origin", role="origin"), announced(0)):
        core.handle(event, 1.0)
    assert words(core, 31.0)[2] == "the run stops with RC202 in 60 min"
