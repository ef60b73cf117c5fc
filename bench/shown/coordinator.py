"""Run the simulated coordinator with a real ledger next to its store, members of several kinds and learner figures.

The core's decisions are written to the ledger in the order in which they were made, so that events, leases and steps
can be looked up as in a run. The figures of the learner's steps are random numbers: the simulator trains nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

from bench.shown.fleet import DELTA, KEYFRAME_TO_DELTA, Machine, links_of
from coordinator.core.causes import cause_of
from coordinator.core.events import actions as act
from coordinator.core.events import events as ev
from coordinator.core.members.mismatch import KL_KEY
from coordinator.metrics.sinks.sink import Sink
from coordinator.report.summary import step_metrics
from coordinator.shell.activation_solver import ActivationPlanner
from coordinator.shell.event_log import EventRows
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Problem, Score
from rollcast.sim.kernel.rpc import Reply
from rollcast.sim.kernel.sessions import Session
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.world import Ground
from rollcast.wire.ids import EncodingId, PeerId, Step
from rollcast.wire.token_ids import id_count
from rollcast.wire.versions.records import VerifiedVersion

TOKENS_STAND_FOR = 48  # real tokens shown for each simulated one
_PEERS_WITH_KL = 16


@dataclass(frozen=True, slots=True)
class Keeping:
    """The places to which a run is recorded, and its machines; ``failed`` receives an error of recording."""

    ledger: Ledger
    sink: Sink
    machines: Mapping[str, Machine]  # by peer id
    failed: Callable[[BaseException], None]


class ShownCoordinator(CoordinatorNode):
    """A simulated coordinator that records its run. Make and drive it inside a running event loop."""

    def __init__(self, ground: Ground, keeping: Keeping) -> None:
        super().__init__(ground)
        self._keeping = keeping
        self._ledger = keeping.ledger
        self._planner = ActivationPlanner()
        self._rows = EventRows(keeping.ledger, lambda: self.agenda.now, self._written)
        self._chance: Random = ground.chance.of("figures of the learner")
        self._stepped_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._origin_facts: tuple[int, ev.PeerFacts] | None = None

    def _written(self, change: asyncio.Future[Any]) -> None:
        """Watch a write to the ledger; its failure is a bug, and goes to ``failed``, which ends the program."""

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self._keeping.failed(error)

        change.add_done_callback(done)

    # ---------------------------------------------------------------- messages of peers

    def hello(self, session: Session, joined: ev.PeerJoined) -> None:
        machine = self._keeping.machines.get(joined.peer_id)
        if machine is not None:
            joined = replace(
                joined,
                name=machine.name,
                hardware=machine.hardware,
                region=machine.region,
                site=machine.site,
                software=machine.software,
                public_name=machine.public_name,
                metered=machine.metered,
            )
        else:
            joined = replace(joined, hardware="cpu, 32 cores", region="us-east", software="rollcast 0.7.0")
        super().hello(session, joined)

    def received(self, session: Session, message: Any) -> None:
        if isinstance(message, ev.HeartbeatReceived):
            message = ev.HeartbeatReceived(message.peer_id, self._facts(message))
        super().received(session, message)

    def _facts(self, heartbeat: ev.HeartbeatReceived) -> ev.PeerFacts:
        facts = heartbeat.facts
        if heartbeat.peer_id not in self._keeping.machines:
            return self._facts_of_origin(heartbeat.peer_id, facts)
        return msgspec.structs.replace(
            facts,
            tokens_generated=facts.tokens_generated * TOKENS_STAND_FOR,
            tokens_per_second=facts.tokens_per_second * TOKENS_STAND_FOR,
        )

    def _facts_of_origin(self, peer_id: PeerId, facts: ev.PeerFacts) -> ev.PeerFacts:
        """Return the facts of the origin's heartbeat with links to its children in the relay plan."""
        part = None if self.core is None else self.core.state.relay.assignment_of(peer_id)
        if part is None or self.core is None:
            return facts
        plan_id = self.core.state.relay.plan_id
        if self._origin_facts is None or self._origin_facts[0] != plan_id:
            links = links_of(peer_id, part, 0, 1 << 30)
            line = self.ground.settings.server_line
            self._origin_facts = (
                plan_id,
                msgspec.structs.replace(
                    facts,
                    state="serving",
                    reason="holds the last 8 versions",
                    links=links,
                    uplink_bytes_per_second=line.up_bytes_s,
                    uplink_measured_s=60.0,
                ),
            )
        return self._origin_facts[1]

    def apply(self, event: ev.Event) -> None:
        if isinstance(event, ev.VersionAnnounced):
            size = int(self.ground.settings.version_bytes)
            keyframe = ev.AnnouncedEncoding(EncodingId(0), "keyframe", None, int(size * KEYFRAME_TO_DELTA))
            known = None if self.core is None else self.core.newest_version
            delta = () if known is None else (ev.AnnouncedEncoding(DELTA, "delta", known, size),)
            event = replace(event, encodings=(keyframe, *delta))
        super().apply(event)

    # ---------------------------------------------------------------- the ledger

    def _carry_out(self, action: act.Action) -> None:
        ledger = self._ledger
        match action:
            case act.RecordAttempt():
                self._written(ledger.record_attempt(action))
            case act.StoreRollout():
                self._written(ledger.store_rollouts([action]))
            case act.StoreTurn():
                self._written(ledger.store_turn(action))
            case act.DropTurns():
                self._written(ledger.drop_turns(action))
            case act.StoreEpisode():
                self._written(ledger.store_episode(action, exact=action.reward >= 1.0))
            case act.CommitTogether():
                self._written(ledger.commit_together(action))
            case act.RecordGroup():
                problem = Problem(action.problem_id, "a simulated problem", "", {})
                self._written(ledger.record_group(action, problem.to_json()))
            case act.CloseAttempt():
                self._written(ledger.close_attempt(action))
            case act.CloseGroup():
                self._written(ledger.close_group(action))
            case act.RecordBatch():
                self._written(ledger.record_batch(action))
            case act.Penalise():
                self._rows.write(action.kind, action.peer_id, action.reason, cause_of(self._cause))
            case act.Note():
                self._rows.write(action.kind, action.subject, action.detail, cause_of(self._cause))
            case _:
                pass
        super()._carry_out(action)

    def announce(self, verified: VerifiedVersion, reply: Reply) -> None:
        record, announcement = verified.record, verified.announcement.SerializeToString(deterministic=True)
        self._written(self._ledger.record_version(record.epoch, record.version, announcement))
        super().announce(verified, reply)

    def _verified(self, item: act.ScoreRollout, reward: float | None) -> None:
        """Record a random reward; a problem is solved more often the longer the policy has been trained."""
        step = 0 if self.core is None else self.core.state.progress.step
        solved = 0.32 + 0.56 * (1.0 - math.exp(-step / 60.0))
        reward = 1.0 if self._chance.random() < solved else 0.0
        self._written(self._ledger.record_score(item.rollout_id, Score(reward, bool(reward))))
        super()._verified(item, reward)

    def _plan_activation(self, action: act.PlanActivation) -> None:
        """Solve the activation problem in a thread, as the real shell does."""

        async def plan() -> None:
            self.apply(await self._planner.solve(action.problem))

        task = asyncio.get_running_loop().create_task(plan())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- the learner's figures

    def step_done(self, step: Step, reply: Reply) -> None:
        if self.core is not None and self.store is not None:
            values = self._figures(step)
            self.apply(ev.StepFinished(step, values))
            doing = ev.LearnerStatusChanged("training", f"step {step + 1}", {"reward_before": 0.31})
            self.apply(doing)
            self._kept(self.store.record_step(step, values))
            self._written(self._ledger.record_step(step, values))
            status = msgspec.to_builtins(self.core.run_status(self.agenda.now))
            self._keeping.sink.write(step, step_metrics(status, values))
        reply.send(True)

    def _figures(self, step: Step) -> dict[str, float]:
        """Return the figures that a real learner reports; the reward is that of the batch."""
        chance, train_s = self._chance, self.ground.settings.train_s
        batch = self.tables.trained_in(Step(step - 1))
        rewards = [stored.reward or 0.0 for _, stored in batch]
        step_s, self._stepped_at = self.agenda.now - self._stepped_at, self.agenda.now
        figures = {
            "version": float(step),
            "reward_mean": sum(rewards) / max(1, len(rewards)),
            "loss": 0.02 * math.exp(-step / 80) + chance.gauss(0.0, 0.004),
            "grad_norm": 0.3 + 0.5 * math.exp(-step / 30) + abs(chance.gauss(0.0, 0.05)),
            "ratio_mean": 1.0 + chance.gauss(0.0, 0.003),
            "clip_fraction": abs(chance.gauss(0.012, 0.004)),
            "kl_k3": abs(chance.gauss(0.004, 0.001)),
            "entropy": 0.4 + 0.9 * math.exp(-step / 90) + chance.gauss(0.0, 0.02),
            "tokens": float(sum(id_count(one.action.rollout.packed_completion) for _, one in batch) * TOKENS_STAND_FOR),
            "train_s": 0.8 * train_s,
            "behaviour_s": 0.2 * train_s,
            "step_s": step_s,
            "wait_s": max(0.0, step_s - train_s),
        }
        return figures | self._mismatch(step) | self._evaluation(step)

    def _mismatch(self, step: Step) -> dict[str, float]:
        chance, peers = self._chance, list(self._keeping.machines)
        by_peer = {
            f"{KL_KEY}{peers[one]}": abs(chance.gauss(4e-4, 2e-4)) for one in range(min(_PEERS_WITH_KL, len(peers)))
        }
        alarming = 30 <= step % 90 < 45
        if alarming and peers:
            by_peer[f"{KL_KEY}{peers[min(3, len(peers) - 1)]}"] = abs(chance.gauss(0.09, 0.01))
        return {
            "mismatch_kl_k3": abs(chance.gauss(4e-4, 1e-4)),
            "mismatch_ratio_mean": 1.0 + chance.gauss(0.0, 1e-3),
            "mismatch_outside_share": 0.001,
            "mismatch_reported_share": 1.0,
            "mismatch_peers_alarming": float(alarming),
            **by_peer,
        }

    def _evaluation(self, step: Step) -> dict[str, float]:
        if step % 10:
            return {}
        passed = 0.30 + 0.52 * (1.0 - math.exp(-step / 70.0)) + self._chance.gauss(0.0, 0.01)
        found = {"pass_at_1": passed, "pass_at_1_low": passed - 0.03, "pass_at_1_high": passed + 0.03}
        found |= {"pass_at_4": min(1.0, passed + 0.12), "version": float(step), "problems": 256.0}
        return {f"eval_held_out_{name}": value for name, value in found.items()}
