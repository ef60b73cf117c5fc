"""Simulate the coordinator's process: its real core, its store on a simulated disk, verifiers that take time.

Two coordinators share one database. One of them leads, the other waits as a standby, as with PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

from capacity.replan.deciding import decide
from coordinator.core.causes import cause_of
from coordinator.core.core import CoordinatorCore, CoreSettings
from coordinator.core.events import actions as act
from coordinator.core.events import evaluation_events as evaluations
from coordinator.core.events import events as ev
from coordinator.core.events.episode_events import CloseEpisode, OpenEpisode, StepEpisode
from coordinator.core.events.operator_events import Order, StalenessLimitChanged
from coordinator.core.events.restored import Restored
from coordinator.core.events.versions_kept import VERSIONS_KEPT
from coordinator.core.leases.evaluation_book import Evaluation
from coordinator.core.members import standby
from coordinator.ledger.saved_orders import ORDERS, Orders
from coordinator.recovery import resume
from coordinator.stores.leadership import RENEW_S
from coordinator.tasks.checks.task import Score
from learner.publishing.epochs import EpochStart
from rollcast.runtime.errors import LeadershipLost, StoreError
from rollcast.sim import environment
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.process import Script, Wait
from rollcast.sim.kernel.rpc import Failed, Reply, Server
from rollcast.sim.kernel.sessions import Session
from rollcast.sim.nodes.environments import Environments
from rollcast.sim.nodes.verifiers import Verifiers
from rollcast.sim.run_settings import core_settings
from rollcast.sim.store.leadership import Fence, LeadershipRow
from rollcast.sim.store.store import MemoryStore, answer_of, run_now
from rollcast.sim.store.tables import Tables
from rollcast.sim.world import Ground
from rollcast.wire.ids import PeerId, Step, UploadId, Version
from rollcast.wire.rollouts import Rollout
from rollcast.wire.versions.records import VerifiedVersion

NAME = "coordinator"
STANDBY_NAME = "coordinator-2"
STEPS_STORED = 64  # steps whose batches and rollouts the simulated store keeps; older ones would only use memory
_INCARNATION = resume.INCARNATION


@dataclass(slots=True)
class Upload:
    """A call with rollouts that is answered once each has its verdict."""

    reply: Reply
    missing: int
    verdicts: list[act.AnswerUpload] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Malformed:
    """An upload whose bytes do not decode to a rollout; only the fields that name the attempt are known."""

    lease_id: int
    fencing_token: int
    sample_index: int


class CoordinatorNode(Server):
    """The coordinator's process and its machine. The disk outlives the process.

    Args:
        standby_of: the coordinator whose database this one shares; None for the only or the first one.

    Attributes:
        epoch: the epoch in which this coordinator led last; 0 if it never did, or is the only one.
    """

    core_type: type[CoordinatorCore] = CoordinatorCore

    def __init__(self, ground: Ground, standby_of: CoordinatorNode | None = None, name: str = NAME) -> None:
        super().__init__(name if standby_of is None else STANDBY_NAME, ground.network)
        self.ground = ground
        if standby_of is None:
            self.disk = Disk(ground.chance.of("disk of the coordinator" if name == NAME else f"disk of {name}"))
            self.tables = Tables(steps_kept=STEPS_STORED)
            self.leadership = LeadershipRow() if ground.settings.coordinators > 1 else None
        else:
            self.disk, self.tables, self.leadership = standby_of.disk, standby_of.tables, standby_of.leadership
        self.epoch = 0
        self.core: CoordinatorCore | None = None
        self.store: MemoryStore | None = None
        self.sessions: dict[str, Session] = {}
        self.events = 0
        self.wall_offset_s = 0.0  # offset of its wall clock; no decision may depend on it, and a fault changes it
        self._queue: deque[ev.Event] = deque()
        self._applying = False
        self._cause: ev.Event = ev.Started()
        self._uploads: dict[UploadId, Upload] = {}
        self._last_upload = 0
        self._batches: dict[Step, list[Reply]] = {}
        self._epochs: dict[int, Reply] = {}
        self.verifiers = Verifiers(ground.settings, self, ground.chance.of("verifiers"))
        self.environments = Environments(ground.settings, self, ground.chance.of("environments"))
        self._prompts = 0
        self._orders = Orders()
        self._standby: dict[PeerId, tuple[str, bool]] = {}  # the standby set as last persisted

    # ---------------------------------------------------------------- lives

    def _begin(self) -> None:
        self.follow(self._boot())

    def _boot(self) -> Script:
        yield self.sleep(self.ground.settings.boot_s)
        fence = None
        if self.leadership is not None:
            self.epoch = yield from self._lead(self.leadership)
            fence = Fence(self.leadership, self.epoch, self._committed)
        if self.disk.state.full:
            self.fail(StoreError("the disk is full"))
            return
        self.store = store = MemoryStore(self.tables, self, self.disk, fence)
        incarnation = int(answer_of(store.get_meta(_INCARNATION)) or 0) + 1
        written = store.set_meta(_INCARNATION, str(incarnation))
        yield lambda resume: written.add_done_callback(lambda _: resume(None))
        if written.exception() is not None:
            self.fail(written.exception())
            return
        settings = self._core_settings()
        restored = self._read(store, incarnation)
        self._restore_prompts()
        self.core = self.core_type(settings, restored)
        self._kept(store.set_meta(VERSIONS_KEPT, self.core.rules.kept.to_json()))
        self.ground.oracle.coordinator_started(incarnation, restored, self.agenda.now)
        self.apply(ev.Started())
        self.apply(standby.from_json(answer_of(store.get_meta(standby.STANDBY)) or "{}"))
        self._orders = Orders.from_json(answer_of(store.get_meta(ORDERS)) or "{}")
        for order in self._orders.events(settings.staleness_rules):
            self.apply(order)
        self._tick()

    def _core_settings(self) -> CoreSettings:
        return core_settings(self.ground.settings, self.ground.chance.seed)

    def _restore_prompts(self) -> None:
        """Continue with the first prompt that no group was opened for."""
        if self.store is not None:
            self._prompts = int(answer_of(self.store.mixture_position()) or 0)

    def _read(self, store: MemoryStore, incarnation: int) -> Restored:
        kept = answer_of(store.get_meta(VERSIONS_KEPT))
        return run_now(resume._restored(store, self.ground.settings.age_max, incarnation, kept))

    # ---------------------------------------------------------------- leadership

    @property
    def is_deposed(self) -> bool:
        """Whether another coordinator has led since this one; then it will notice soon, and end."""
        return self.leadership is not None and self.leadership.epoch != self.epoch

    def _lead(self, row: LeadershipRow) -> Generator[Wait, Any, int]:
        """Wait until this coordinator leads; return its epoch."""
        while (epoch := row.take(self.agenda.now)) is None:
            yield self.sleep(RENEW_S)
        self.ground.oracle.leads(self.name, epoch, self.agenda.now)
        self.later(RENEW_S, self._renew, row)
        return epoch

    def _renew(self, row: LeadershipRow) -> None:
        """Send the renewal to the database, whose answer takes a sync: other work goes on meanwhile."""
        renewed = row.renew(self.epoch, self.agenda.now)
        self.later(self.disk.sync_s(), self._renewed, row, renewed)

    def _renewed(self, row: LeadershipRow, renewed: bool) -> None:
        if renewed:
            self.later(RENEW_S, self._renew, row)
        else:
            self.fail(LeadershipLost("this coordinator leads no longer"))

    def _committed(self, epoch: int) -> None:
        self.ground.oracle.committed(self.name, epoch, self.agenda.now)

    def _killed(self) -> None:
        super()._killed()
        if self.store is not None:
            self.store.crash(self.ground.chance.of("crashes"))
        self.core = self.store = None
        self._queue.clear()
        self._applying = False
        self._uploads.clear()
        self._batches.clear()
        self._epochs.clear()
        self.verifiers.clear()
        self.environments.clear()
        sessions, self.sessions = self.sessions, {}
        for session in sessions.values():
            session.dismiss("connection reset")

    def fail(self, error: BaseException | None) -> None:
        """End the process by itself: the disk is full, another one leads, or there is a bug, which is judged."""
        if "disk is full" not in str(error) and not isinstance(error, LeadershipLost):
            self.ground.oracle.failed(f"the coordinator ends: {error!r}", self.agenda.now)
        self.ground.trace.add(self.agenda.now, "ended", self.name)
        self.kill()

    def _tick(self) -> None:
        self.apply(ev.Tick())
        if self.core is not None and self.store is not None and self.core.standby() != self._standby:
            self._standby = self.core.standby()
            self._kept(self.store.set_meta(standby.STANDBY, standby.to_json(self._standby)))
        self.later(self.ground.settings.tick_s, self._tick)

    def apply(self, event: ev.Event) -> None:
        """Pass an event to the core and carry out its actions, as the real shell does.

        Events that arrive while actions are carried out are queued: the core handles one event at a time.
        """
        if self._applying:
            self._queue.append(event)
            return
        if self.core is None:
            return
        self._applying = True
        self._handle(self.core, event)
        while self._queue and self.core is not None:
            self._handle(self.core, self._queue.popleft())
        self._applying = False

    def _handle(self, core: CoordinatorCore, event: ev.Event) -> None:
        now, settings, oracle = self.agenda.now, self.ground.settings, self.ground.oracle
        self.events += 1
        dearer_checks = self.events % settings.validate_every == 0
        try:
            actions = core.handle(event, now)
            if dearer_checks and settings.own_checks:
                core.validate()
        except (AssertionError, ValueError, KeyError) as error:
            self.fail(error)
            return
        self._cause = event
        if self.leadership is not None and self.is_deposed:
            oracle.deposed_handled(self.name, event, actions, now)
        else:
            oracle.coordinator_handled(event, actions, now)
            if dearer_checks:
                oracle.coordinator_counts(core, now)
        for action in actions:
            self._carry_out(action)

    # ---------------------------------------------------------------- sessions

    def hello(self, session: Session, joined: ev.PeerJoined) -> None:
        """Open a session for a peer; it replaces an earlier session of the same peer."""
        if self.core is None:  # not listening yet
            session.dismiss("connection refused")
            return
        previous = self.sessions.pop(session.name, None)
        if previous is not None:
            previous.dismiss("another session of the same peer replaced it")
        self.sessions[session.name] = session
        session.send_to_peer("welcome", self.ground.settings.prefetch_batches)
        self.apply(joined)

    def received(self, session: Session, message: Any) -> None:
        """Turn a message of an open session into an event; messages of a replaced session are discarded."""
        if isinstance(message, ev.PeerJoined):
            self.hello(session, message)
        elif self.sessions.get(session.name) is session:
            self.apply(message)

    def give(self, order: Order) -> None:
        """Carry out an operator's order, and persist it so that a restarted coordinator resumes with it."""
        if isinstance(order, StalenessLimitChanged):
            self.ground.oracle.limit_ordered(order.staleness_limit)
        self.apply(order)
        if self.store is not None:
            self._orders.take(order)
            self._kept(self.store.set_meta(ORDERS, self._orders.to_json()))

    def hung_up(self, session: Session, reason: str, *, finished: bool) -> None:
        """Handle the end of a session that the peer closed."""
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
            self.apply(ev.PeerLeft(PeerId(session.name), reason, finished))

    def _send(self, peer_id: PeerId, kind: str, content: Any) -> None:
        session = self.sessions.get(peer_id)
        if session is not None:
            session.send_to_peer(kind, content)

    # ---------------------------------------------------------------- calls

    def upload(self, request: tuple[PeerId, tuple[Rollout | Malformed, ...]], reply: Reply) -> None:
        """Receive rollouts of a peer; the call is answered once each has its verdict."""
        peer_id, rollouts = request
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        upload = Upload(reply, len(rollouts))
        arrive_together = len(rollouts) > 1
        if arrive_together:
            self.apply(ev.ArrivalsBegan())
        for rollout in rollouts:
            self._last_upload += 1
            upload_id = UploadId(self._last_upload)
            self._uploads[upload_id] = upload
            if isinstance(rollout, Rollout):
                self.apply(ev.RolloutReceived(upload_id, peer_id, rollout))
            else:
                fields = (rollout.lease_id, rollout.fencing_token, rollout.sample_index)
                self.apply(ev.MalformedRollout(upload_id, peer_id, *fields, "no rollout"))  # type: ignore[arg-type]
        if arrive_together:
            self.apply(ev.ArrivalsEnded())

    def next_batch(self, step: Step, reply: Reply) -> None:
        """Receive the learner's request for a batch; the call is answered when the batch is recorded."""
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        self._batches.setdefault(step, []).append(reply)
        self.apply(ev.LearnerCalled())
        self.apply(ev.BatchRequested(step))

    def run_info(self, _request: None, reply: Reply) -> None:
        """Answer the learner's first call: starts of epochs, recorded batches, newest version, age of versions kept."""
        if self.core is None or self.store is None:
            reply.send(Failed("not listening yet"))
            return
        newest = self.tables.newest_version()
        starts = [EpochStart(one.epoch, one.step_from, one.step_to) for one in self.tables.epochs()]
        verified = None if newest is None else self.ground.signer.parsed(newest.announcement)
        reply.send((starts, self.tables.recorded_batches(), verified, self.core.rules.kept.age_max))

    def announce(self, verified: VerifiedVersion, reply: Reply) -> None:
        """Record and announce a version that the learner has pushed to the origin."""
        if self.store is None or self.core is None:
            reply.send(Failed("not listening yet"))
            return
        record, announcement = verified.record, verified.announcement.SerializeToString(deterministic=True)
        change = self.store.record_version(record.epoch, record.version, announcement)

        def stored(change: asyncio.Future[bool]) -> None:
            error = change.exception()
            if error is not None:
                reply.send(Failed(str(error)))
                return
            if change.result():
                encodings = tuple(
                    ev.AnnouncedEncoding(one.encoding_id, one.kind, one.base_version, one.size_bytes)
                    for one in verified.manifests
                )
                self.apply(ev.VersionAnnounced(record.epoch, record.version, verified.chunk_count_max, encodings))
            reply.send(True)

        change.add_done_callback(stored)

    def open_epoch(self, request: tuple[Step, Version | None], reply: Reply) -> None:
        """Open an epoch for a resumed learner whose replay reached another state than the published one."""
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        self._last_upload += 1
        self._epochs[self._last_upload] = reply
        self.apply(ev.EpochRequested(self._last_upload, *request))

    def evaluate(self, request: evaluations.EvaluationRequested, reply: Reply) -> None:
        """Answer the state of an evaluation, which begins with the first request for it."""
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        if self.core.evaluation(request.key) is None:
            self.apply(request)
        found: Evaluation | None = None if self.core is None else self.core.evaluation(request.key)
        reply.send(Failed("the process ended") if found is None else (found.done, found.given_up, tuple(found.exact)))

    def step_done(self, step: Step, reply: Reply) -> None:
        """Record a step that the learner reports as finished."""
        if self.core is not None and self.store is not None:
            self.apply(ev.StepFinished(step, {}))
            self._kept(self.store.record_step(step, {}))
        reply.send(True)

    # ---------------------------------------------------------------- actions

    def _carry_out(self, action: act.Action) -> None:
        store = self.store
        if store is None:  # the process ended while it carried out the actions before
            return
        match action:  # the most frequent ones first: this is the simulator's hottest dispatch
            case act.RecordAttempt():
                self._kept(store.record_attempt(action))
            case act.StoreRollout():
                self._kept(store.store_rollouts([action]), ev.RolloutStored(action.rollout_id))
            case act.AnswerUpload():
                self._answer_upload(action)
            case act.ScoreRollout():
                self.verifiers.score(action, self._verified)
            case act.SendLeases():
                self._send(action.peer_id, "leases", action.leases)
            case act.SendAnnouncement():
                self._announce_to(action)
            case act.StoreTurn():
                stored = ev.TurnStored(action.rollout.lease_id, action.rollout.sample_index)
                self._kept(store.store_turn(action), stored)
            case act.DropTurns():
                self._kept(store.drop_turns(action))
            case act.StoreEpisode():
                self._kept(store.store_episode(action, exact=False), ev.RolloutStored(action.rollout_id))
            case act.CommitTogether():
                committed = store.commit_together(action)
                self._kept(committed)
                for one in action.episodes:
                    self._kept(committed, ev.RolloutStored(one.rollout_id))
            case OpenEpisode() | StepEpisode() | CloseEpisode():
                self.environments.carry_out(action, self.apply)
            case act.ScoreEvaluation():
                self.later(self.ground.settings.verify_s, self._evaluated, action)
            case act.RevokeLeases():
                self._send(action.peer_id, "revoke", action)
            case act.SendPlan():
                self._send(action.peer_id, "plan", action)
            case act.SendProbe():
                self._send(action.peer_id, "probe", action.probe_id)
            case act.TellActivation():
                self._send(action.peer_id, "activation", action)
            case act.WantWorker() | act.SetBudget():
                pass  # no provider is simulated
            case act.SendToPeer() | act.TryAddress():
                pass  # the simulated network decides who can be dialled; no NAT traversal is simulated
            case act.PlanRelays():
                self.later(self.ground.settings.plan_s, self._plan_relays, action.number)
            case act.PlanActivation():
                self.later(self.ground.settings.plan_s, self._plan_activation, action)
            case act.StopPeer():
                self._send(action.peer_id, "stop", action.reason)
            case act.RefuseSession():
                self._end_session(action.peer_id, action.what)
            case act.EndSession():
                self._end_session(action.peer_id, action.reason)
            case act.SupplyPrompts():
                self.later(0.01, self._supply, action.count)
            case act.BeginStage():
                pass  # simulated prompts are of no difficulty
            case act.RecordGroup():
                self._kept(store.record_group(action, action.problem_id))
            case act.CloseAttempt():
                self._kept(store.close_attempt(action))
            case act.CloseGroup():
                self._kept(store.close_group(action))
            case act.RecordBatch():
                self._kept(store.record_batch(action), ev.BatchRecorded(action.step))
            case act.ServeBatch():
                self._serve(action)
            case act.RecordEpoch():
                self._kept(store.record_epoch(action), ev.EpochRecorded(action.epoch))
            case act.RecordVersionsKept():
                self._kept(store.set_meta(VERSIONS_KEPT, action.kept.to_json()))
            case act.RecordQuarantine():
                self._record_quarantine(store, action)
            case act.LiftQuarantine():
                self._kept(store.lift_quarantine(action.peer_id))
            case act.AnswerEpoch():
                self._epochs.pop(action.request_id).send(action)
            case act.Penalise():
                self._kept(store.record_event("penalised", action.peer_id, action.reason, cause=cause_of(self._cause)))
            case act.Note():
                self._kept(store.record_note(action, cause=cause_of(self._cause)))
            case act.DeliverRollout():
                self._deliver(action)
            case act.FailRun():
                self.fail(StoreError(action.reason))
            case _:
                assert_never(action)

    def _deliver(self, action: act.DeliverRollout) -> None:
        raise ValueError(f"rollout {action.rollout_id} is to be delivered, and this is no cell")

    def epoch_now(self, _request: None, reply: Reply) -> None:
        """Answer the epoch of newest versions."""
        reply.send(Failed("not listening yet") if self.core is None else (self.core.epoch,))

    def _record_quarantine(self, store: MemoryStore, action: act.RecordQuarantine) -> None:
        def recorded(change: asyncio.Future[None]) -> None:
            if change.exception() is None:
                self.ground.oracle.ledger.quarantine_recorded(action.peer_id)

        change = store.record_quarantine(action)
        change.add_done_callback(recorded)
        self._kept(change)

    def _kept(self, change: asyncio.Future[Any], then: ev.Event | None = None) -> None:
        change.add_done_callback(self._made if then is None else partial(self._go_on, then))

    def _made(self, change: asyncio.Future[Any]) -> None:
        error = change.exception()
        if error is not None:
            self.fail(error)

    def _go_on(self, then: ev.Event, change: asyncio.Future[Any]) -> None:
        error = change.exception()
        if error is not None:
            self.fail(error)
        else:
            self.apply(then)

    def _announce_to(self, action: act.SendAnnouncement) -> None:
        stored = self.tables.version(action.version)
        if stored is None:
            self.fail(StoreError(f"the announcement of version {action.version} is not in the ledger"))
        else:
            for peer_id in action.peer_ids:
                self._send(peer_id, "announcement", self.ground.signer.parsed(stored.announcement))

    def _end_session(self, peer_id: PeerId, reason: str) -> None:
        session = self.sessions.pop(peer_id, None)
        if session is not None:
            session.dismiss(reason)
            self.apply(ev.PeerLeft(peer_id, reason))

    def _plan_relays(self, number: int) -> None:
        """Solve a large relay plan as the process beside the coordinator's loop does, outside the core."""
        problem = None if self.core is None else self.core.relay_problem
        if problem is not None:
            problem.solve()
        self.apply(ev.RelaysPlanned(number))

    def _plan_activation(self, action: act.PlanActivation) -> None:
        solved = decide(action.problem)
        self.apply(ev.ActivationPlanned(replace(solved, solve_s=self.ground.settings.plan_s)))

    def _supply(self, count: int) -> None:
        first, self._prompts = self._prompts, self._prompts + count
        numbers = range(first, first + count)
        self.apply(ev.PromptsSupplied(tuple(map(self._prompt, numbers))))

    def _prompt(self, number: int) -> ev.Prompt:
        has_environment = self.ground.settings.turns_most > 0 and number % 2 == 0
        if not has_environment:
            return ev.Prompt(f"p{number}", (2, 3), str(number + 1))
        return ev.Prompt(f"p{number}", (2, 3), str(number + 1), environment.NAME, self.ground.settings.agents)

    def _answer_upload(self, action: act.AnswerUpload) -> None:
        upload = self._uploads.pop(action.upload_id)
        upload.verdicts.append(action)
        upload.missing -= 1
        if not upload.missing:
            self.closed(upload.reply)
            upload.reply.send(tuple(upload.verdicts))

    def _serve(self, action: act.ServeBatch) -> None:
        assert self.core is not None
        rules = self.core.rules
        for reply in self._batches.pop(action.step, ()):
            self.closed(reply)
            reply.send((rules.publish_every_steps, rules.kept.age_max, self.tables.trained_in(action.step)))

    def _evaluated(self, item: act.ScoreEvaluation) -> None:
        reward = float(sum(item.completion_token_ids) % 2)
        self.apply(evaluations.EvaluationScored(item.key, item.problem, item.sample_index, reward, reward == 1.0))

    def _verified(self, item: act.ScoreRollout, reward: float | None) -> None:
        if self.store is None:
            return
        if reward is None:
            self.apply(ev.ScoringFailed(item.rollout_id, "unavailable", "", retryable=True))
            return
        self._kept(self.store.record_score(item.rollout_id, Score(reward, False)))
        self.apply(ev.RolloutScored(item.rollout_id, reward))
