"""Judge the coordinator from its events and actions alone, with books of its own. Each entry takes O(1) time.

A crash may lose what was not promised yet. At each start the judge checks that the restored state holds everything
that was acknowledged to a peer or served to the learner, then sets its books to the restored state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.events import actions as act
from coordinator.core.events import events as ev
from coordinator.core.events.episode_events import OpenEpisode
from coordinator.core.events.operator_events import PeerEnabled
from coordinator.core.events.restored import Restored
from coordinator.core.leases.drop_counts import NEXT_TURN, RolloutAccounts
from rollcast.sim.engine import STOP_TOKEN, tokens_of
from rollcast.sim.judge.episodes import EpisodeBooks
from rollcast.sim.judge.verdicts import Verdicts
from rollcast.sim.settings import FleetSettings
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import Rollout

Key = tuple[int, int]  # lease and sample index
Slot = tuple[int, int]  # group and sample index
STEPS_KEPT = 64
_BATCHES_LOST_MAX = 4.0  # of slots, by one peer in a row


@dataclass(slots=True)
class Issued:
    """An issued attempt that is neither trained nor dropped yet."""

    slot: Slot
    token: int
    peer_id: str
    seed: int
    oldest_version: int = 0  # with which its peer may generate; 0 after a restart
    prefix_segments: int = 0  # of its lease: earlier attempts generated these, perhaps the same peer's
    rollout_id: int | None = None  # set once its rollout is being stored
    durable: bool = False
    made_turn: bool = False  # of an episode: nothing of it is in flight any more


@dataclass(slots=True)
class Books:
    """The open attempts by attempt, slot and rollout, and the counts of I11."""

    attempts: dict[Key, Issued] = field(default_factory=dict)
    live: dict[Slot, list[Key]] = field(default_factory=dict)
    filled: dict[Slot, Key] = field(default_factory=dict)
    rollouts: dict[int, tuple[Key, Rollout | None, int]] = field(default_factory=dict)  # third: its oldest version
    acknowledged: set[Key] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # issued, accepted, trained
    dropped: Counter[str] = field(default_factory=Counter)


class LedgerJudge:
    """The judge of I1, I2, I3, I6, I7, I9, I11, the deadlines of leases and their versions at the coordinator."""

    def __init__(self, settings: FleetSettings, verdicts: Verdicts) -> None:
        self._settings = settings
        self._verdicts = verdicts
        self.books = Books()
        self.batches: dict[int, tuple[int, ...]] = {}  # recorded or being recorded
        self.recorded = 0
        self.age_max = settings.age_max  # the highest age, in learner steps, at which a rollout may be trained
        self.served = 0  # the batches of all steps below were served to the learner
        self.trained_before: dict[int, int] = {0: 0}  # by step: rollouts in the batches of the steps below it
        self.liars: set[str] = set()
        self.cells: set[str] = set()  # members whose rollouts their own workers generate
        self._from_cells: set[Key] = set()  # stored, and perhaps trained or dropped since
        self._storing_from_cells: dict[int, Key] = {}  # by rollout id: not durable yet, and perhaps dropped already
        self.head: LedgerJudge | None = None  # of a cell: the judge of the run that it works for
        self._quarantined: set[str] = set()  # identities whose quarantine is durable
        self._last_lease = self._last_rollout = 0
        self._scored: set[int] = set()
        self._unscored: set[int] = set()  # the last verdict was a failure
        self._prompts: dict[int, str] = {}
        self._seeds: dict[int, dict[int, int]] = {}  # by group: the seed of each of its slots
        self._versions: dict[int, int] = {}  # the epoch of each announced version
        self._orphaned: list[tuple[int, int]] = []  # epochs that ended, with the newest version that still counts
        self._deadlines: deque[tuple[float, Key]] = deque()  # deadlines of attempts, soonest first
        self._generated_with: dict[str, int] = {}  # by peer: the newest version of its rollouts
        self._episodes = EpisodeBooks(settings)
        self._expired: Counter[str] = Counter()  # by peer: leases' slots since it delivered something
        self._now = 0.0
        self._of_action: dict[type, Callable[[Any], None]] = {
            act.RecordGroup: self._group,
            act.RecordAttempt: self._attempt,
            act.SendLeases: self._leases,
            act.CloseAttempt: self._close,
            act.StoreRollout: self._store,
            act.StoreTurn: self._turn,
            act.StoreEpisode: lambda action: self._game([action]),
            act.DropTurns: lambda action: self._episodes.drop((action.group_id, action.sample_index)),
            act.CloseGroup: lambda action: self._episodes.drop_group(action.group_id),
            OpenEpisode: lambda action: self._wrong_episode("episode", self._episodes.opened(action)),
            act.AnswerUpload: self._answer,
            act.RecordBatch: self._batch,
            act.ServeBatch: self._serve,
            act.RecordEpoch: self._epoch,
            act.Penalise: self._penalise,
        }
        self._of_event: dict[type, Callable[[Any], None]] = {
            ev.RolloutStored: self._stored,
            ev.RolloutScored: self._was_scored,
            ev.ScoringFailed: self._failed,
            ev.TurnStored: lambda event: self._episodes.durable((event.lease_id, event.sample_index)),
            ev.BatchRecorded: self._batch_recorded,
            ev.VersionAnnounced: self._announced,
            PeerEnabled: self._enabled,
        }

    # ---------------------------------------------------------------- observations

    def started(self, restored: Restored, now: float) -> None:
        """Check I1 and I11 when a coordinator starts: the restored state lacks no promise, and its counts close."""
        self._now = now
        self._generated_with.clear()
        self._expired.clear()  # what a coordinator knows of peers ends with it
        old, self.books = self.books, _books_of(restored)
        books = self.books
        for step in range(self.recorded, restored.recorded_batches):  # durable, but the crash came before the event
            old.acknowledged.difference_update(old.rollouts[one][0] for one in self.batches[step])
            self._count_trained(step)
        here = {key for key, one in books.attempts.items() if one.durable}
        self._storing_from_cells.clear()
        self._from_cells |= {key for key in here if books.attempts[key].peer_id in self.cells}
        for key in sorted(old.acknowledged - here):
            if key in old.attempts:
                self._blame("I1", f"the acknowledged rollout of lease {key[0]}, sample {key[1]} is lost", key[0])
        books.acknowledged = old.acknowledged & here
        for lost in self._episodes.restarted(restored):
            self._blame("I1", lost)
        if restored.recorded_batches < self.served:
            self._blame("I1", f"{restored.recorded_batches} batches are recorded, {self.served} were served")
        still_open = restored.issued - restored.trained - restored.turns - sum(restored.dropped.values())
        if still_open != len(books.attempts):
            self._blame("I11", f"{len(books.attempts)} attempts were restored, {still_open} by the counts")
        for rollout_id, (key, _, oldest) in books.rollouts.items():
            rollout = old.rollouts[rollout_id][1] if rollout_id in old.rollouts else None
            books.rollouts[rollout_id] = (key, rollout, oldest)
            books.attempts[key].seed = old.attempts[key].seed if key in old.attempts else -1
        for step in [step for step in self.batches if step >= restored.recorded_batches]:
            del self.batches[step]
        for version in restored.versions:  # announcements may be durable without their event, too
            self._versions.setdefault(version, _epoch_of(version, restored))
        self._orphaned = [_orphans(opened) for opened in restored.epochs]
        self.recorded = restored.recorded_batches
        deadline = now + self._settings.lease_deadline_s  # a restart gives live attempts a full period
        self._deadlines = deque((deadline, key) for key, one in books.attempts.items() if _is_live(one))
        self._scored = {one.rollout_id for group in restored.groups for one in group.rollouts if one.scored}
        self._unscored.clear()
        self._verdicts.checks += 4

    def see(self, event: ev.Event, actions: Sequence[act.Action], now: float) -> None:
        """Check one event of the core and the actions that it returned."""
        self._now = now
        of_event = self._of_event.get(type(event))
        if of_event is not None:
            of_event(event)
        for action in actions:
            of_action = self._of_action.get(type(action))
            if of_action is not None:
                self._verdicts.checks += 1
                of_action(action)
            elif isinstance(action, act.CommitTogether):
                self._together(action)
        if type(event) is ev.Tick:
            self._overdue()

    def bounded(self, core: CoordinatorCore, now: float) -> None:
        """Check I8: what the core keeps in memory is within its bounds."""
        settings, state = self._settings, core._state
        kept = {
            "finished attempts": (len(state.book._finished), settings.finished_attempts_kept),
            "tokens of partial results": (state.partials.tokens, settings.partial_tokens_max),
            "unscored rollouts": (state.book.unscored, settings.scoring_queue_max),
            "prompts": (len(state.prompts.stock), state.settings.prompts_ahead_max),
        }
        for what, (count, most) in kept.items():
            if count > most:
                self._verdicts.blame("I8", f"the coordinator keeps {count} {what}, the bound is {most}", now)

    def counted(self, accounts: RolloutAccounts, now: float) -> None:
        """Check I11: the core's accounts match the judge's, and issued = trained + turns + dropped + open."""
        self._now = now
        books, dropped = self.books, accounts.dropped
        mine = (*(books.counts[one] for one in ("issued", "accepted", "trained", "turns")), books.dropped)
        theirs = (accounts.issued, accounts.accepted, accounts.trained, accounts.turns, Counter(dropped))
        if mine != theirs:
            self._blame("I11", f"the core counts {theirs}, {mine} by its actions")
        if accounts.issued != accounts.trained + accounts.turns + sum(dropped.values()) + len(books.attempts):
            self._blame("I11", f"{theirs} do not add up with {len(books.attempts)} open")

    def _overdue(self) -> None:
        """Check that no attempt is live after its deadline; called after a tick, which expires leases."""
        while self._deadlines and self._deadlines[0][0] <= self._now:
            deadline, key = self._deadlines.popleft()
            issued = self.books.attempts.get(key)
            self._verdicts.checks += 1
            if issued is not None and _is_live(issued):
                what = f"lease {key[0]} of {issued.peer_id} is live {self._now - deadline:.1f} s after its deadline"
                self._blame("deadline", what, key[0])

    # ---------------------------------------------------------------- events

    def _stored(self, event: ev.RolloutStored) -> None:
        found = self.books.rollouts.get(event.rollout_id)
        self.books.counts["accepted"] += 1
        if self._episodes.ended(event.rollout_id):  # its score is stored with it
            self._scored.add(event.rollout_id)
        if found is not None and found[0] in self.books.attempts:
            self.books.attempts[found[0]].durable = True
        if (key := self._storing_from_cells.pop(event.rollout_id, None)) is not None:
            self._from_cells.add(key)

    def _was_scored(self, event: ev.RolloutScored) -> None:
        self._scored.add(event.rollout_id)
        self._unscored.discard(event.rollout_id)

    def _failed(self, event: ev.ScoringFailed) -> None:
        if event.rollout_id not in self._scored:
            self._unscored.add(event.rollout_id)

    def _batch_recorded(self, event: ev.BatchRecorded) -> None:
        books = self.books
        for rollout_id in self.batches.get(event.step, ()):
            key = books.rollouts.pop(rollout_id)[0]
            books.filled.pop(books.attempts.pop(key).slot, None)
            books.acknowledged.discard(key)
            books.counts["trained"] += 1
            self._scored.discard(rollout_id)
            self._unscored.discard(rollout_id)
        self.recorded = event.step + 1
        self._count_trained(event.step)

    def _count_trained(self, step: int) -> None:
        self.trained_before[step + 1] = self.trained_before.get(step, 0) + len(self.batches.get(step, ()))
        self.batches.pop(step - STEPS_KEPT, None)
        self.trained_before.pop(step - STEPS_KEPT, None)

    def epoch_of(self, version: int) -> int | None:
        """Return the epoch in which a version was announced; None if it was not announced, or is long past."""
        return self._versions.get(version)

    def _announced(self, event: ev.VersionAnnounced) -> None:
        self._versions[event.version] = event.epoch
        self._versions.pop(event.version - 4 * STEPS_KEPT, None)

    # ---------------------------------------------------------------- actions

    def _group(self, action: act.RecordGroup) -> None:
        if self._prompts.setdefault(action.group_id, action.problem_id) != action.problem_id:
            self._blame("I6", f"group {action.group_id} was another prompt before", action.group_id)
        self._prompts.pop(action.group_id - 4096, None)
        self._seeds.pop(action.group_id - 4096, None)

    def _attempt(self, action: act.RecordAttempt) -> None:
        books, key = self.books, (action.lease_id, action.sample_index)
        slot = (action.group_id, action.sample_index)
        if action.lease_id < self._last_lease or key in books.attempts:
            self._blame("I6", f"lease {action.lease_id} was issued before", action.lease_id)
        self._last_lease = max(self._last_lease, action.lease_id)
        live = books.live.setdefault(slot, [])
        if slot in books.filled:
            self._blame("I6", f"the filled slot {slot} is issued again", slot)
        if len(live) >= 2:
            self._blame("I6", f"a third live attempt at the slot {slot}", slot)
        for other in [books.attempts[one] for one in live]:
            if other.token >= action.fencing_token:
                self._blame("I6", f"the fencing token of the slot {slot} does not rise", slot)
        self._seed(action)
        live.append(key)
        oldest_version = self._generated_with.get(action.peer_id, 0)
        books.attempts[key] = Issued(slot, action.fencing_token, action.peer_id, action.seed, oldest_version)
        self._deadlines.append((self._now + self._settings.lease_deadline_s, key))
        books.counts["issued"] += 1
        self._verdicts.trace.add(self._now, "issued", action.lease_id, slot, action.peer_id)

    def _seed(self, action: act.RecordAttempt) -> None:
        slot, seeds = (action.group_id, action.sample_index), self._seeds.setdefault(action.group_id, {})
        if seeds.setdefault(action.sample_index, action.seed) != action.seed:
            self._blame("seed", f"the slot {slot} has another seed", slot)
        if len(set(seeds.values())) < len(seeds):
            self._blame("seed", f"the slot {slot} has the seed of another slot of its group", slot)

    def _leases(self, action: act.SendLeases) -> None:
        if action.peer_id in self._quarantined:
            self._blame("I9", f"{action.peer_id} is quarantined and gets work", action.peer_id)
        for lease in action.leases:
            if lease.kind == "evaluation":  # those have a judge of their own
                continue
            for slot in lease.slots:
                issued = self.books.attempts.get((lease.lease_id, slot.sample_index))
                if issued is None or issued.peer_id != action.peer_id:
                    self._blame("I11", f"lease {lease.lease_id} is sent but not recorded", lease.lease_id)
                else:
                    issued.prefix_segments = len(slot.prefix)

    def _close(self, action: act.CloseAttempt) -> None:
        books, key = self.books, (action.lease_id, action.sample_index)
        issued = books.attempts.pop(key, None)
        if issued is None:
            self._blame("I11", f"sample {key[1]} of lease {key[0]} is dropped twice or unknown", action.lease_id)
            return
        if action.reason == NEXT_TURN:
            books.counts["turns"] += 1
            if not issued.made_turn:
                self._blame("I11", f"lease {key[0]} is counted as a turn and made none", key[0])
        else:
            books.dropped[action.reason] += 1
        if action.reason == "lease_expired":
            self._lost(issued.peer_id)
        if action.reason == "delivered" and self.head is not None:
            self._delivered(issued.slot[0], self.head)
        if _is_live(issued):
            books.live[issued.slot].remove(key)
        elif issued.rollout_id is not None:
            books.filled.pop(issued.slot, None)
            self._unscored.discard(issued.rollout_id)
            if issued.durable:
                books.rollouts.pop(issued.rollout_id, None)
        if not books.live.get(issued.slot):
            books.live.pop(issued.slot, None)
        books.acknowledged.discard(key)
        self._verdicts.trace.add(self._now, "dropped", action.lease_id, issued.slot, action.reason)

    def _delivered(self, group_id: int, head: LedgerJudge) -> None:
        """Check that the head has stored what this cell lets go of; the problem of a group names the head's lease."""
        lease_id, sample_index = map(int, self._prompts[group_id].removeprefix("lent/").split("/"))
        if (lease_id, sample_index) not in head._from_cells:
            what = f"the rollout of the head's lease {lease_id}, sample {sample_index}, which the head has not stored"
            self._blame("cell", f"a cell counts as delivered {what}", lease_id)
        head._from_cells.discard((lease_id, sample_index))

    def _lost(self, peer_id: str) -> None:
        self._expired[peer_id] += 1
        batches = self._expired[peer_id] / self._settings.rollouts_per_step
        if batches > _BATCHES_LOST_MAX:
            self._blame("starve", f"{peer_id} lost {batches:.1f} batches of slots and delivered nothing", peer_id)

    def _store(self, action: act.StoreRollout) -> None:
        books, rollout = self.books, action.rollout
        key = (rollout.lease_id, rollout.sample_index)
        issued = books.attempts.get(key)
        if action.rollout_id <= self._last_rollout and action.rollout_id in books.rollouts:
            self._blame("I2", f"rollout id {action.rollout_id} is used twice", key[0])
        self._last_rollout = max(self._last_rollout, action.rollout_id)
        if issued is None or issued.rollout_id is not None:
            self._blame(
                "I6", f"the rollout stored for lease {key[0]}, sample {key[1]} belongs to no live attempt", key[0]
            )
            return
        if issued.slot in books.filled:
            self._blame("I6", f"the slot {issued.slot} is filled twice", issued.slot)
        if issued.token != rollout.fencing_token or issued.peer_id != action.peer_id:
            self._blame("I6", f"lease {key[0]} is filled by another peer, or under another token", key[0])
        problem = self._problem(action.peer_id, rollout, issued.seed)
        if problem:
            self._blame("I7", f"lease {key[0]}, sample {key[1]}: {problem}", key[0])
        generated = rollout.segments[issued.prefix_segments :]
        own = [one.version for one in generated if one.peer_id == action.peer_id]
        if min(own, default=issued.oldest_version) < issued.oldest_version:
            what = f"{issued.peer_id} answers lease {key[0]} with version {min(own)}, and had used"
            self._blame("version", f"{what} version {issued.oldest_version} before", key[0])
        newest = max([*own, self._generated_with.get(action.peer_id, 0)])
        self._generated_with[action.peer_id] = newest
        issued.rollout_id = action.rollout_id
        if action.peer_id in self.cells:
            self._storing_from_cells[action.rollout_id] = key
        self._expired.pop(action.peer_id, None)
        books.live[issued.slot].remove(key)
        if not books.live[issued.slot]:
            del books.live[issued.slot]
        books.filled[issued.slot] = key
        books.rollouts[action.rollout_id] = (key, rollout, rollout.oldest_version)
        self._verdicts.trace.add(self._now, "stored", key[0], issued.slot, action.rollout_id, rollout.oldest_version)

    def _turn(self, action: act.StoreTurn) -> None:
        books, rollout = self.books, action.rollout
        key = (rollout.lease_id, rollout.sample_index)
        issued = books.attempts.get(key)
        if issued is None or not _is_live(issued):
            self._blame("I6", f"the turn stored for lease {key[0]} belongs to no live attempt", key[0])
            return
        if issued.token != rollout.fencing_token or issued.peer_id != action.peer_id or issued.slot in books.filled:
            self._blame("I6", f"a turn of lease {key[0]} is another peer's, another token's, or too late", key[0])
        issued.made_turn = True
        self._expired.pop(action.peer_id, None)
        books.live[issued.slot].remove(key)
        self._wrong_episode("I6", self._episodes.take(action))
        if any(segment.role != "assistant" for segment in rollout.segments):
            self._blame("I7", f"lease {key[0]}: a peer's turn has what an environment said", key[0])
        self._verdicts.trace.add(self._now, "turn", key[0], issued.slot, action.turn)

    def _together(self, action: act.CommitTogether) -> None:
        for change in action.changes:
            if not isinstance(change, act.StoreEpisode):
                self._of_action[type(change)](change)
        if action.episodes:
            self._game(action.episodes)

    def _game(self, actions: Sequence[act.StoreEpisode]) -> None:
        keys = [(one.rollout.lease_id, one.rollout.sample_index) for one in actions]
        found = [self.books.attempts.get(key) for key in keys]
        ended = [(one, it.slot, it.seed) for one, it in zip(actions, found, strict=True) if it is not None]
        self._wrong_episode("episode", self._episodes.end(ended))
        for action in actions:
            self._episode(action)

    def _episode(self, action: act.StoreEpisode) -> None:
        books, rollout = self.books, action.rollout
        key = (rollout.lease_id, rollout.sample_index)
        issued = books.attempts.get(key)
        if issued is None or not issued.made_turn or issued.rollout_id is not None:
            self._blame("I6", f"the episode stored for lease {key[0]} has no turn that waits for its end", key[0])
            return
        if issued.slot in books.filled:
            self._blame("I6", f"the slot {issued.slot} is filled twice", issued.slot)
        self._last_rollout = max(self._last_rollout, action.rollout_id)
        oldest = min(segment.version for segment in rollout.segments if segment.role == "assistant")
        issued.rollout_id = action.rollout_id
        books.filled[issued.slot] = key
        books.rollouts[action.rollout_id] = (key, rollout, oldest)
        self._verdicts.trace.add(self._now, "episode", key[0], issued.slot, action.rollout_id, action.reward)

    def _wrong_episode(self, rule: str, problem: str) -> None:
        if problem:
            self._blame(rule, problem)

    def _problem(self, peer_id: PeerId, rollout: Rollout, seed: int) -> str:
        """Return why a submission must be rejected, by rules independent of the coordinator's; empty if it is valid."""
        tokens = rollout.completion_token_ids
        if not 0 < len(tokens) <= self._settings.lengths.most or max(tokens) >= 64:
            return "its tokens are impossible"
        if rollout.finish_reason == "interrupted":
            return "it is no finished completion"
        for segment in rollout.segments:
            if segment.role != "assistant":
                return "it is no finished completion"
            if self._versions.get(segment.version) != segment.epoch:
                return f"it claims version {segment.version} of epoch {segment.epoch}, which was not announced"
        if rollout.segments[-1].peer_id != peer_id and peer_id not in self.cells:
            return "another peer made it"
        if seed >= 0 and peer_id not in self.liars:
            expected = tokens_of(seed, 0, len(tokens))
            if rollout.finish_reason == "stop":
                expected[-1] = STOP_TOKEN
            if tuple(expected) != tokens:
                return "its tokens do not follow from its seed"
        return ""

    def _answer(self, action: act.AnswerUpload) -> None:
        if not action.accepted:
            return
        key = (action.lease_id, action.sample_index)
        issued = self.books.attempts.get(key)
        if issued is not None and issued.made_turn:
            self._wrong_episode("I1", self._episodes.acknowledge(key))
        elif issued is not None:
            if not issued.durable:
                self._blame("I1", f"lease {key[0]}, sample {key[1]} is acknowledged before it is stored", key[0])
            self.books.acknowledged.add(key)

    def deposed_answered(self, name: str, action: act.AnswerUpload, now: float) -> None:
        """Check that a coordinator that leads no longer accepts only what was stored before."""
        issued = self.books.attempts.get((action.lease_id, action.sample_index))
        if issued is not None and not issued.durable and not issued.made_turn:
            what = f"{name}, which leads no longer, acknowledges lease {action.lease_id}, which is not stored"
            self._verdicts.blame("leader", what, now, action.lease_id)

    def _batch(self, action: act.RecordBatch) -> None:
        books, step = self.books, action.step
        if step != self.recorded or (step in self.batches and self.batches[step] != action.rollout_ids):
            self._blame("I2", f"the batch of step {step} is formed out of order or anew", step)
        if len(set(action.rollout_ids)) != self._settings.rollouts_per_step:
            self._blame("I2", f"the batch of step {step} has {len(set(action.rollout_ids))} rollouts", step)
        for rollout_id in action.rollout_ids:
            found = books.rollouts.get(rollout_id)
            if found is None:
                self._blame("I2", f"rollout {rollout_id} was trained, dropped, or never stored", rollout_id)
                continue
            key, rollout, oldest = found
            if step - oldest > self.age_max:
                self._blame("I3", f"step {step} trains on version {oldest}", rollout_id)
            if rollout is not None and self._rolled_back(rollout):
                self._blame("I3", f"step {step} trains on an orphaned version: {rollout.oldest_version}", rollout_id)
            if rollout_id in self._unscored:
                self._blame("unscored", f"step {step} trains on a rollout that the verifier failed on", rollout_id)
            elif rollout_id not in self._scored or not books.attempts[key].durable:
                self._blame("I2", f"rollout {rollout_id} is not stored and scored", rollout_id)
        self.batches[step] = action.rollout_ids
        self._verdicts.trace.add(self._now, "batch", step, action.rollout_ids)

    def _rolled_back(self, rollout: Rollout) -> bool:
        return any(
            segment.epoch <= epoch and segment.version > common
            for epoch, common in self._orphaned
            for segment in rollout.segments
            if segment.role == "assistant"
        )

    def _serve(self, action: act.ServeBatch) -> None:
        if action.step >= self.recorded:
            self._blame("I2", f"the batch of step {action.step} is served before it is recorded", action.step)
        self.served = max(self.served, action.step + 1)

    def _epoch(self, action: act.RecordEpoch) -> None:
        self._orphaned.append(_orphans(action))
        for step in range(action.step_from, action.step_to):
            self.batches[step] = ()
            self._count_trained(step)
        self.recorded = max(self.recorded, action.step_to)

    def _penalise(self, action: act.Penalise) -> None:
        if action.peer_id not in self.liars:
            what = "quarantined" if action.quarantined else "penalised"
            self._blame("I9", f"honest {action.peer_id} is {what}: {action.reason}", action.peer_id)

    def quarantine_recorded(self, peer_id: PeerId) -> None:
        """Note that an identity's quarantine is durable, which a restart must not undo."""
        self._quarantined.add(peer_id)

    def _enabled(self, event: PeerEnabled) -> None:
        self._quarantined.discard(event.peer_id)

    def _blame(self, rule: str, what: str, subject: object = None) -> None:
        self._verdicts.blame(rule, what, self._now, subject)


def _orphans(opened: act.RecordEpoch) -> tuple[int, int]:
    """Return the epoch that ended, and the newest of its versions that still counts (-1 if none does)."""
    return (opened.epoch - 1, -1 if opened.common_version is None else opened.common_version)


def _epoch_of(version: int, restored: Restored) -> int:
    return max((opened.epoch for opened in restored.epochs if opened.step_to <= version), default=0)


def _is_live(issued: Issued) -> bool:
    return issued.rollout_id is None and not issued.made_turn


def _books_of(restored: Restored) -> Books:
    books = Books(dropped=Counter(restored.dropped))
    books.counts.update(
        issued=restored.issued, accepted=restored.accepted, trained=restored.trained, turns=restored.turns
    )
    for group in restored.groups:
        for attempt in group.live:
            slot = (group.group_id, attempt.sample_index)
            key = (attempt.lease_id, attempt.sample_index)
            turns = group.turns.get(attempt.sample_index, ())
            made_turn = bool(turns) and turns[-1].lease_id == attempt.lease_id
            books.attempts[key] = Issued(slot, attempt.fencing_token, attempt.peer_id, -1, made_turn=made_turn)
            if not made_turn:
                books.live.setdefault(slot, []).append(key)
        for rollout in group.rollouts:
            attempt = rollout.attempt
            slot, key = (group.group_id, attempt.sample_index), (attempt.lease_id, attempt.sample_index)
            issued = Issued(
                slot, attempt.fencing_token, attempt.peer_id, -1, rollout_id=rollout.rollout_id, durable=True
            )
            books.attempts[key] = issued
            books.filled[slot] = key
            books.rollouts[rollout.rollout_id] = (key, None, rollout.oldest_version)
    return books
