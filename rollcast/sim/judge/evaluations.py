"""Judge evaluations: each one that is asked for ends, its samples are what was leased, and none of them is trained on.

The judge keeps the leases that the coordinator sent, and trusts neither its book nor its checks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass

from coordinator.core.core import CoordinatorCore
from coordinator.core.events import actions as act
from coordinator.core.events import events as ev
from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationRequested
from rollcast.sim.engine import STOP_TOKEN, tokens_of
from rollcast.sim.judge.verdicts import Verdicts
from rollcast.sim.settings import FleetSettings
from rollcast.wire.rollouts import Rollout
from rollcast.wire.token_ids import id_count, pack_ids

_SLACK_S = 60.0  # for restarts of the coordinator, calls that are lost, and polls, beyond an evaluation's deadline
_LEASES_KEPT = 65536
_WATCHED = frozenset({act.SendLeases, act.StoreRollout, act.ScoreEvaluation})

Key = tuple[int, int]  # lease and sample index


@dataclass(frozen=True, slots=True)
class _Leased:
    peer_id: str
    version: int
    seed: int


class EvaluationJudge:
    """Keeps the evaluations that the learner waits for, and the samples that peers were leased."""

    def __init__(self, settings: FleetSettings, verdicts: Verdicts, liars: Set[str]) -> None:
        """``liars``: the peers that may send anything, to which the fleet adds."""
        self._settings = settings
        self._verdicts = verdicts
        self._liars = liars
        self._asked: dict[EvaluationKey, float] = {}
        self._leased: OrderedDict[Key, _Leased] = OrderedDict()
        self._scoring: set[tuple[EvaluationKey, int, int]] = set()
        self.done = self.given_up = 0

    # ---------------------------------------------------------------- the learner

    def learner_started(self) -> None:
        """Forget what the learner's earlier life waited for."""
        self._asked.clear()

    def asked(self, key: EvaluationKey, now: float) -> None:
        """Note that the learner waits for an evaluation from now on."""
        self._asked.setdefault(key, now)
        self._overdue(now)

    def ended(self, key: EvaluationKey, exact: Sequence[int], given_up: str, now: float) -> None:
        """Check that an evaluation has scores or a reason, as the learner sees it."""
        self._verdicts.checks += 1
        self._asked.pop(key, None)
        self._verdicts.trace.add(now, "evaluated", key.version, tuple(exact), given_up)
        if given_up:
            self.given_up += 1
            return
        self.done += 1
        if len(exact) != key.problems or not all(0 <= one <= key.samples for one in exact):
            self._verdicts.blame("evaluation", f"version {key.version} has impossible scores {exact}", now)

    def over(self, core: CoordinatorCore, now: float) -> None:
        """Check at the end of the run that no evaluation goes on, and that none took longer than it may."""
        self._overdue(now)
        left = core.state.evaluations.under_way()
        if left:
            self._verdicts.blame("evaluation", f"{len(left)} evaluations go on after the end of the run", now)

    def _overdue(self, now: float) -> None:
        limit_s = self._settings.evaluation_deadline_s + _SLACK_S
        for key, asked_s in self._asked.items():
            self._verdicts.checks += 1
            if now - asked_s > limit_s:
                what = f"the evaluation of version {key.version} has not ended after {now - asked_s:.0f} s"
                self._verdicts.blame("evaluation", what, now, key)

    # ---------------------------------------------------------------- the coordinator

    def coordinator_started(self) -> None:
        """Forget what an earlier coordinator scored: its evaluations ended with it, and are asked for again."""
        self._scoring.clear()

    def see(self, event: ev.Event, actions: Sequence[act.Action], now: float) -> None:
        """Check one event of the core and the actions that it returned."""
        if not actions:
            return
        if isinstance(event, EvaluationRequested):  # it begins, perhaps anew
            self._scoring = {sample for sample in self._scoring if sample[0] != event.key}
        for action in actions:
            if type(action) not in _WATCHED:
                continue
            if isinstance(action, act.SendLeases):
                self._sent(action, now)
            elif isinstance(action, act.StoreRollout):
                key = (action.rollout.lease_id, action.rollout.sample_index)
                if key in self._leased:
                    self._verdicts.blame("evaluation", f"lease {key[0]} of an evaluation is stored for training", now)
            elif isinstance(action, act.ScoreEvaluation) and isinstance(event, ev.RolloutReceived):
                self._scored(event, action, now)

    def _sent(self, action: act.SendLeases, now: float) -> None:
        for lease in action.leases:
            if lease.kind != "evaluation":
                continue
            for slot in lease.slots:
                self._verdicts.checks += 1
                key = (lease.lease_id, slot.sample_index)
                if key in self._leased:
                    self._verdicts.blame("evaluation", f"lease {lease.lease_id} was sent before", now, key)
                self._leased[key] = _Leased(action.peer_id, lease.oldest_useful_version, slot.seed)
            self._verdicts.trace.add(now, "evaluates", action.peer_id, lease.lease_id, lease.oldest_useful_version)
        while len(self._leased) > _LEASES_KEPT:
            self._leased.popitem(last=False)

    def _scored(self, event: ev.RolloutReceived, action: act.ScoreEvaluation, now: float) -> None:
        rollout = event.rollout
        sample = (action.key, action.problem, action.sample_index)
        leased = self._leased.get((rollout.lease_id, rollout.sample_index))
        self._verdicts.checks += 2
        if sample in self._scoring:
            self._verdicts.blame("evaluation", f"a sample of version {action.key.version} is scored twice", now)
        self._scoring.add(sample)
        problem = "it was never leased" if leased is None else _problem(leased, event.peer_id, rollout)
        if leased is not None and not problem and event.peer_id not in self._liars:
            problem = _not_of_seed(leased.seed, rollout)
        if problem:
            self._verdicts.blame("evaluation", f"lease {rollout.lease_id} is scored: {problem}", now, rollout.lease_id)


def _problem(leased: _Leased, peer_id: str, rollout: Rollout) -> str:
    if leased.peer_id != peer_id:
        return "another peer held the lease"
    if {segment.version for segment in rollout.segments} != {leased.version}:
        return f"it was not generated with version {leased.version} alone"
    return "it is no finished completion" if rollout.finish_reason == "interrupted" else ""


def _not_of_seed(seed: int, rollout: Rollout) -> str:
    expected = tokens_of(seed, 0, id_count(rollout.packed_completion))
    if rollout.finish_reason == "stop":
        expected[-1] = STOP_TOKEN
    return "" if pack_ids(expected) == rollout.packed_completion else "its tokens do not follow from its seed"
