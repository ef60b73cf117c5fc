"""Judge a simulation: the oracle sees every event, has the true state and trusts no core's own checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.events import actions as act
from coordinator.core.events import events as ev
from coordinator.core.events.operator_events import PeerBanned, PeerDrained, PeerEnabled
from coordinator.core.events.restored import Restored
from rollcast.sim.judge.control_plane import LedgerJudge
from rollcast.sim.judge.evaluations import EvaluationJudge
from rollcast.sim.judge.verdicts import Verdicts, Violation
from rollcast.sim.kernel.trace import Trace
from rollcast.sim.settings import RESUME_S, FleetSettings
from rollcast.wire.versions.chunks import HASH_BYTES, blake3_hash
from rollcast.wire.versions.records import VerifiedVersion

_MEMBERS_CHANGE = frozenset({PeerDrained, PeerBanned, PeerEnabled, ev.PeerJoined})
_TO_PEERS = frozenset({act.TellActivation, act.SendLeases})


class Oracle:
    """A judge of all invariants while the simulation runs. Each call takes O(1) time, except at restarts."""

    def __init__(self, settings: FleetSettings, trace: Trace) -> None:
        self._settings = settings
        self._trace = trace
        self._verdicts = Verdicts(trace)
        self.ledger = LedgerJudge(settings, self._verdicts)
        self.evaluation = EvaluationJudge(settings, self._verdicts, self.ledger.liars)
        self._active: dict[str, int] = {}
        self._spool_max = (16 + 2) * settings.concurrent_rollouts_max
        self._trained_at: dict[int, int] = {}
        self._standby: set[str] = set()  # peers that the coordinator switched off
        self._kept_out: set[str] = set()  # peers that the operator drained or banned
        self.steps = 0  # the most learner steps that were ever completed; a resumed learner repeats some of them
        self.last_progress_s = 0.0
        self._last_again_s = 0.0  # when the learner last completed a step that it had completed before
        self.ages: dict[int, int] = {}
        self._leading_epoch = 0  # of the coordinator that took the leadership last
        self._announced: dict[tuple[int, int], bytes] = {}  # announced states by epoch and version
        self._strayed: int | None = None  # the version whose state a resumed learner failed to reproduce

    @property
    def violations(self) -> list[Violation]:
        return self._verdicts.found

    @property
    def checks(self) -> int:
        """Return how many facts were checked so far."""
        return self._verdicts.checks

    def failed(self, what: str, now: float) -> None:
        """Record that a process failed although no fault made it fail."""
        self._verdicts.blame("own", what, now)

    def blame(self, rule: str, what: str, now: float, subject: object = None) -> None:
        """Record a broken rule that a simulated process noticed itself, because only it sees what broke it."""
        self._verdicts.blame(rule, what, now, subject)

    # ---------------------------------------------------------------- coordinator

    def coordinator_started(self, incarnation: int, restored: Restored, now: float) -> None:
        self._trace.add(now, "coordinator", incarnation, restored.recorded_batches, len(restored.groups))
        self.ledger.started(restored, now)
        self.evaluation.coordinator_started()
        self._standby.clear()
        self._kept_out.clear()

    def leads(self, name: str, epoch: int, now: float) -> None:
        """Note that a coordinator took the leadership, in this epoch."""
        self._trace.add(now, "leads", name, epoch)
        self._leading_epoch = epoch

    def committed(self, name: str, epoch: int, now: float) -> None:
        """Check that only the leader commits: its ledger is what the others have not read."""
        self._verdicts.checks += 1
        if epoch != self._leading_epoch:
            what = f"{name} commits in epoch {epoch}, although another one leads in epoch {self._leading_epoch}"
            self._verdicts.blame("leader", what, now, name)

    def deposed_handled(self, name: str, event: ev.Event, actions: Sequence[act.Action], now: float) -> None:
        """Check what a coordinator does that does not know yet that another one leads.

        It may do what a peer or the learner can repeat at the leader. The books are those of the leader.
        """
        self._trace.add(now, "deposed", name, type(event).__name__, len(actions))
        for action in actions:
            if isinstance(action, act.AnswerUpload) and action.accepted:
                self.ledger.deposed_answered(name, action, now)

    def coordinator_handled(self, event: ev.Event, actions: Sequence[act.Action], now: float) -> None:
        if isinstance(event, ev.HeartbeatReceived) and not actions:  # half of all events
            self._trace.add(now, "HeartbeatReceived", event.peer_id, 0)
            return
        self._trace.add(now, type(event).__name__, getattr(event, "peer_id", None), len(actions))
        self.ledger.see(event, actions, now)
        self.evaluation.see(event, actions, now)
        if type(event) in _MEMBERS_CHANGE:
            self._member_changed(event)
        for action in actions:
            if type(action) not in _TO_PEERS:
                continue
            if isinstance(action, act.TellActivation):
                (self._standby.discard if action.active else self._standby.add)(action.peer_id)
            elif isinstance(action, act.SendLeases):
                self._verdicts.checks += 1
                if action.peer_id in self._standby:
                    self._verdicts.blame("activation", f"{action.peer_id} is switched off and gets work", now)
                if action.peer_id in self._kept_out:
                    self._verdicts.blame("activation", f"{action.peer_id} is drained or banned and gets work", now)

    def _member_changed(self, event: ev.Event) -> None:
        if isinstance(event, PeerEnabled):
            self._kept_out.discard(event.peer_id)
        elif isinstance(event, ev.PeerJoined):
            self._standby.discard(event.peer_id)  # the coordinator sends a standby peer its state again on joining
        elif isinstance(event, PeerDrained | PeerBanned):
            self._kept_out.add(event.peer_id)

    def coordinator_counts(self, core: CoordinatorCore, now: float) -> None:
        """Compare the core's accounts with the judge's own; more expensive than the other checks."""
        self.ledger.counted(core._state.accounts, now)
        self.ledger.bounded(core, now)
        self._verdicts.checks += 6

    # ---------------------------------------------------------------- peers

    def peer_started(self, name: str, now: float) -> None:
        self._trace.add(now, "started", name)
        self._active.pop(name, None)

    def peer_holds(self, name: str, spooled: int, now: float) -> None:
        """Check I8: the finished rollouts that wait at a peer are bounded."""
        self._verdicts.checks += 1
        if spooled > self._spool_max:
            self._verdicts.blame("I8", f"{name} holds {spooled} finished rollouts", now, name)

    def peer_claims(self, name: str, version: int, complete: bool, now: float) -> None:
        """Check I12: a version that a peer reports as held is complete."""
        self._verdicts.checks += 1
        self._trace.add(now, "holds", name, version)
        if not complete:
            self._verdicts.blame("I12", f"{name} claims version {version}, of which chunks are missing", now, name)

    def activated(self, name: str, version: int, as_signed: bool, now: float) -> None:
        """Check I4 and I5: the activated bytes are the signed ones, and versions only increase."""
        self._verdicts.checks += 2
        self._trace.add(now, "activated", name, version)
        if not as_signed:
            self._verdicts.blame("I4", f"{name} generates with bytes that are not version {version}", now, name)
        if self._active.get(name, -1) >= version:
            before = self._active[name]
            self._verdicts.blame("I5", f"{name} activates version {version} after {before}", now, name)
        self._active[name] = version

    def relayed(self, name: str, version: int, index: int, payload: bytes, hashes: bytes | None, now: float) -> None:
        """Check I4: an honest relay sends only chunks that it verified, so each one matches its signed hash."""
        self._verdicts.checks += 1
        signed = b"" if hashes is None else hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
        if blake3_hash(payload) != signed:
            self._verdicts.blame("I4", f"{name} relays chunk {index} of version {version} with wrong bytes", now, name)

    # ---------------------------------------------------------------- learner

    def learner_resumed(self, step: int, trained: int, now: float) -> None:
        """Check I2: a checkpoint names exactly the rollouts that were trained on before its step."""
        self._trace.add(now, "resumed", step, trained)
        self.evaluation.learner_started()
        self._strayed = None
        self._verdicts.checks += 1
        expected = self.ledger.trained_before.get(step)
        if expected is not None and expected != trained:
            self._verdicts.blame("I2", f"the checkpoint of step {step} names {trained} rollouts of {expected}", now)

    def epoch_entered(self, epoch: int, step: int, now: float) -> None:
        self._trace.add(now, "epoch entered", epoch, step)
        self._strayed = None

    def asking(self, step: int, now: float) -> None:
        """Check I4: the learner asks for a new batch only if its state is the one that was published."""
        if self._strayed is not None and step >= self.ledger.recorded and step not in self.ledger.batches:
            what = f"step {step} continues from another state than version {self._strayed} of its epoch"
            self._verdicts.blame("I4", what, now, step)

    def training(
        self,
        step: int,
        epoch: int,
        batch: Sequence[tuple[int, Any]],
        again: Sequence[bool],
        oldest_kept: int,
        now: float,
    ) -> None:
        """Check I2 and I3 when the learner begins a step on this batch.

        Args:
            batch: rollout ids with the rollouts as stored.
            again: for each, whether the learner's own list has it as trained on before.
            oldest_kept: the oldest version whose log-probabilities the learner can still compute.
        """
        self._trace.add(now, "training", step, epoch)
        self._verdicts.checks += len(batch)
        ids = tuple(int(rollout_id) for rollout_id, _ in batch)
        if any(again):
            self._verdicts.blame("I2", f"step {step} trains on a rollout that the learner trained on before", now, step)
        recorded = self.ledger.batches.get(step)
        if recorded is not None and recorded != ids:
            self._verdicts.blame("I2", f"step {step} trains on another batch than was recorded", now, step)
        for rollout_id, stored in batch:
            if self._trained_at.setdefault(int(rollout_id), step) != step:
                before = self._trained_at[int(rollout_id)]
                self._verdicts.blame("I2", f"rollout {rollout_id} is in the steps {before} and {step}", now, step)
            age = step - stored.action.rollout.oldest_version
            if age > self.ledger.age_max:
                self._verdicts.blame("I3", f"step {step} trains on a rollout of age {age}", now, step)
            if stored.action.rollout.oldest_version < oldest_kept:
                what = f"step {step} needs a version from before {oldest_kept}, the oldest that the learner kept"
                self._verdicts.blame("I3", what, now, step)
            self.ages[age] = self.ages.get(age, 0) + 1
        if len(self._trained_at) > 64 * 1024:
            self._trained_at = {key: at for key, at in self._trained_at.items() if at > step - 256}

    def limit_ordered(self, staleness_limit: int) -> None:
        """Note that the operator changes S; a batch may have been recorded with the largest that there was."""
        late_steps = self._settings.age_max - self._settings.staleness_limit
        self.ledger.age_max = max(self.ledger.age_max, staleness_limit + late_steps)

    def stepped(self, step: int, epoch: int, state_hash: bytes, now: float) -> None:
        """Record that the learner has completed ``step`` steps and is in the state with this hash."""
        signed = self._announced.get((epoch, step))
        if signed is not None and signed != state_hash:
            self._strayed = step
        if step > self.steps:
            self.steps, self.last_progress_s = step, now
        else:
            self._last_again_s = now

    def announcing(self, verified: VerifiedVersion, origin_holds: bool, now: float) -> None:
        """Check I12: a version is announced only once it would survive a power loss at the origin."""
        version = verified.version
        self._announced[(verified.record.epoch, version)] = verified.record.state_hash
        self._announced.pop((verified.record.epoch, version - 256), None)
        self._verdicts.checks += 1
        self._trace.add(now, "announcing", version)
        if not origin_holds:
            self._verdicts.blame("I12", f"version {version} is announced before the origin holds it", now)

    def resume_by_s(self, since_s: float) -> float:
        """Return the time by which I10 requires a new step, if faults ended or the last step was at ``since_s``.

        Steps that the learner repeats after a restart extend the time, but no longer than repeating them may take.
        """
        again_s = max(0.0, self._last_again_s - since_s)
        allowed_s = max(RESUME_S, again_s + self._settings.resume_limit_s)
        return since_s + min(allowed_s, self._settings.calm_limit_s)

    def calm(self, since_s: float, now: float) -> None:
        """Check I10 at ``now``, any time after the last fault ended at ``since_s``."""
        self._verdicts.checks += 1
        began_s = max(since_s, self.last_progress_s)
        limit_s = self.resume_by_s(began_s) - began_s
        if now - began_s > limit_s:
            waited_s, calm_s = now - self.last_progress_s, now - since_s
            what = f"no new step for {waited_s:.0f} s, faults ended {calm_s:.0f} s ago; {limit_s:.0f} s are allowed"
            self._verdicts.blame("I10", what, now)
