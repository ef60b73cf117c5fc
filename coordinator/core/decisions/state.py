"""Hold the core's state, as the components that its decisions read and change."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from capacity.model.pacing_rules import GroupYield
from coordinator.core.broadcast.dissemination import Dissemination
from coordinator.core.broadcast.link_rates import LinkRates
from coordinator.core.broadcast.planner import RelayPlanner
from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.events.actions import (
    Action,
    CloseAttempt,
    CloseGroup,
    EndSession,
    SendToPeer,
    StopPeer,
    together,
)
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.episode_events import CloseEpisode, OpenEpisode
from coordinator.core.events.restored import Restored, RestoredAttempt, RestoredGroup, RestoredRollout
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.batches import Batches, Usefulness
from coordinator.core.leases.drop_counts import LOST, OVERTAKEN, TOO_SLOW, ChunkTraffic, DropReason, RolloutAccounts
from coordinator.core.leases.episodes import EpisodeBook, Game
from coordinator.core.leases.evaluation_book import EvaluationBook
from coordinator.core.leases.forecast import Forecast
from coordinator.core.leases.groups import Group, environment_seed
from coordinator.core.leases.in_flight import LeaseClock
from coordinator.core.leases.lease_book import LeaseBook
from coordinator.core.leases.partials import Partials
from coordinator.core.leases.prompt_queue import PromptQueue
from coordinator.core.leases.scoring_book import ScoringBook
from coordinator.core.leases.stages import StageBook
from coordinator.core.lent.lent import LentBook
from coordinator.core.members.allowances import Allowances
from coordinator.core.members.audit_book import AuditBook
from coordinator.core.members.audit_queue import AuditQueue
from coordinator.core.members.learner_profile import Profile
from coordinator.core.members.membership import Members
from coordinator.core.members.offers import Offers
from coordinator.core.members.progress import LearnerProgress
from coordinator.core.members.reputation_card import Card, card_of_peer, verdict_of
from coordinator.core.reach.address_book import ReachBook
from coordinator.core.staleness.age_breakdown import AgeBreakdown
from coordinator.core.staleness.epochs import AnnouncedVersions, EpochBook
from coordinator.core.staleness.policy import LateCounts, LateWait, RulesInForce, StalenessFigures
from rollcast.wire.ids import Epoch, PeerId, Step, Version
from rollcast.wire.rollouts import Sampling

__all__ = ["CoreState", "Restored", "RestoredAttempt", "RestoredGroup", "RestoredRollout"]

# Deadline of a lease / what its peer is expected to need for the longest rollout: speeds are medians, and vary.
_DEADLINE_TIMES = 4.0


class CoreState:
    """The components, and the changes that touch several of them at once."""

    def __init__(self, settings: CoreSettings, restored: Restored | None = None) -> None:
        restored = restored or Restored()
        self.settings = settings
        self.restored_groups = restored.groups  # until Started brings the time
        self.members = Members(
            heartbeat_timeout_s=settings.heartbeat_timeout_s, tick_s=settings.tick_s, quarantined=restored.quarantined
        )
        self.book = LeaseBook(
            run_seed=settings.seed,
            samples_per_group=settings.samples_per_group,
            finished_kept=settings.finished_attempts_kept,
            last_group=restored.last_group,
            ids_before=restored.ids_before,
            finished=restored.finished[-settings.finished_attempts_kept :],
        )
        self.lease_clock = LeaseClock()
        self.scoring = ScoringBook(settings.scoring_failed_share_max)
        self.episodes = EpisodeBook(restored.ids_before)
        self.evaluations = EvaluationBook(settings.finished_attempts_kept)
        self.batches = Batches(
            groups_per_step=settings.groups_per_step,
            recorded=restored.recorded_batches,
        )
        self.stages = StageBook(settings.stages)
        self.lent = LentBook()
        self.prompts = PromptQueue(groups_per_step=settings.groups_per_step, ahead_max=settings.prompts_ahead_max)
        # Peers follow no older plan than the one they have, so plan ids must be higher than those before a restart.
        self.relay = RelayPlanner(settings.plan_shape, restored.ids_before)
        self.links = LinkRates()
        self.reach = ReachBook()
        self.prices = settings.activation.prices
        self.budget = settings.activation.budget
        self.offers = Offers()
        self.accounts = RolloutAccounts(
            issued=restored.issued,
            accepted=restored.accepted,
            trained=restored.trained,
            turns=restored.turns,
            dropped=Counter(restored.dropped),
        )
        self.usefulness = Usefulness()
        self.traffic = ChunkTraffic()
        self.audit = AuditBook()
        self.unseen = AuditQueue(settings.seed)
        self.rules = RulesInForce(settings.staleness_rules, restored.kept, restored.recorded_batches)
        self.late = LateCounts()
        self.late_wait = LateWait(self.late)
        self.ages = AgeBreakdown(restored.age_split, restored.groups)
        self.staleness = StalenessFigures(Counter(restored.trained_ages))
        self.dissemination = Dissemination()
        self.progress = LearnerProgress()
        self.profile: Profile | None = None  # the newest one since the start
        self.now = 0.0  # of the event that is being handled
        self.arrivals_go_on = False  # whether further events arrived together with it
        self.forecast = Forecast()
        self.group_yield = GroupYield()
        self.partials = Partials(settings.partial_tokens_max)
        self.epochs = EpochBook(restored.epochs)
        self.epoch_requests: dict[Epoch, list[int]] = {}  # calls that wait for an epoch to be durable
        self.announced = AnnouncedVersions(restored.versions, self.epochs)
        # To members of a large run, some in each tick. Ids alone are nothing that the garbage collector has to scan.
        self.to_announce = deque[tuple[Version, deque[PeerId]]]()
        self.newest_version = max(restored.versions, default=None)
        self.ended = ""  # why the run is over, empty while it is not
        self.ended_for_good = False
        self.paused = ""  # why the operator paused the run, empty while it goes on
        self.last_step: Step | None = None  # the first step whose batch is not formed, as the operator ends the run

    def problems_in_use(self) -> set[str]:
        """Return the ids of the problems that an action may still name: of open and ready groups, and in stock."""
        in_stock = {prompt.problem_id for prompt in self.prompts.stock}
        return in_stock | {group.prompt.problem_id for group in self.book}

    @property
    def holds_work(self) -> bool:
        """Whether no work for training is given out and no batch formed, because the run is paused or finishing."""
        return bool(self.paused) or self.last_step is not None

    @property
    def sampling_now(self) -> Sampling:
        """The sampling settings of leases that are given now, which follow from the run's stage."""
        stage, sampling = self.stages.at(self.batches.next_step), self.settings.sampling
        return sampling if stage is None else replace(sampling, max_new_tokens=stage.new_tokens_max)

    @property
    def allowances(self) -> Allowances:
        """How many slots members may hold now."""
        settings = self.settings
        return self.members.allowances(
            settings.groups_per_step * settings.samples_per_group, settings.samples_per_group
        )

    def lease_deadline_s(self, peer_id: PeerId, load: int, new_tokens_max: int) -> float:
        """Return the seconds after which a lease that this peer is given now expires.

        A deadline is there for workers that hang: an honest one, however slow, is to be done with the longest rollout
        long before.

        Args:
            load: see Forecast.longest_s.
        """
        settings = self.settings
        longest_s = self.forecast.longest_s(peer_id, load, new_tokens_max, self.now)
        most_s = settings.lease_deadline_most_s
        return max(settings.lease_deadline_s, most_s if longest_s is None else min(most_s, _DEADLINE_TIMES * longest_s))

    def most_held(self, concurrent_rollouts: int) -> int:
        """Return the most slots that a peer which generates so many rollouts at once can use."""
        return int(self.settings.prefetch_batches * concurrent_rollouts)

    def close_attempt(self, attempt: Attempt, reason: DropReason) -> CloseAttempt:
        """Close a live attempt that ended without a rollout; its slot will be issued again."""
        self.book.close(attempt)
        overtaken = reason in OVERTAKEN and self._lasted_long(attempt)
        if reason in TOO_SLOW:
            self.forecast.gave_up(attempt, self.now)
        if (reason in LOST or overtaken) and attempt.load:  # not if an earlier coordinator issued it
            self.members.lost(attempt, self.allowances, self.now, overtaken=overtaken)
        return self._drop(attempt, reason)

    def _lasted_long(self, attempt: Attempt) -> bool:
        """Whether an attempt lasted longer than its peer's attempts usually do."""
        typical_s = self.forecast.typical_s(attempt.peer_id, attempt.load, self.now)
        return typical_s is not None and self.now - attempt.issued_at > typical_s

    def close_attempts(self, attempts: list[Attempt], reason: DropReason, *, notify_peers: bool) -> list[Action]:
        """Close live attempts. ``notify_peers``: whether to revoke the leases at peers that cannot know of it."""
        if not attempts:
            return []
        actions: list[Action] = [self.close_attempt(attempt, reason) for attempt in attempts]
        return actions + self.book.revocations(attempts, reason) if notify_peers else actions

    def drop_group(self, group: Group, reasons: list[DropReason], live_reason: DropReason) -> list[Action]:
        """Drop a whole group: its rollouts for ``reasons``, in slot order, and its attempts in flight."""
        actions = self.close_attempts(group.live(), live_reason, notify_peers=True)
        for first, _ in group.games():
            actions += self.close_game(group, first, live_reason)
        fillings = group.fillings()
        self.book.remove([group])
        for index in range(len(group.slots)):
            self.partials.filled(group.group_id, index)
        for filling, reason in zip(fillings, reasons, strict=True):
            actions.append(self._drop(filling.attempt, reason))
            if filling.stored and group.lent is None:  # the head's learner judges what a cell generates
                peer_id = filling.attempt.peer_id
                self.offer_for_audit(Unseen(filling.rollout_id, peer_id, filling.oldest_version))
        actions.append(CloseGroup(group.group_id))
        return actions if group.prompt.agents == 1 else together(actions)

    def offer_for_audit(self, unseen: Unseen) -> None:
        """Have the learner judge a rollout on which it does not train, if it is chosen."""
        reputation = self.members.reputation(unseen.peer_id)
        if not reputation.quarantined:
            self.unseen.offer(unseen, self.audit.share_audited(unseen.peer_id, reputation.invite))

    def card_of(self, peer_id: PeerId) -> Card:
        """Return what is known about a peer's work."""
        reputation = self.members.reputation(peer_id)
        return card_of_peer(
            self.audit.record(peer_id),
            peer_id,
            reputation.name,
            banned=reputation.banned,
            quarantined=reputation.quarantined,
            share_audited=self.audit.share_audited(peer_id, reputation.invite),
        )

    def report_to_cell(self, cell: PeerId, member: PeerId) -> SendToPeer:
        """Return the message by which a cell learns what was found about one of its members."""
        return SendToPeer(cell, verdict_of(self.card_of(member), of_member=True))

    def drop_rollout(self, group: Group, index: int, reason: DropReason) -> list[Action]:
        """Drop the rollout of one slot, and of its game's other agents with it; the slots will be issued again."""
        dropped: list[Action] = [
            self._drop(self.book.reopen(group, one).attempt, reason) for one in group.game_slots(index)
        ]
        return [*together(dropped), *self.open_game(group, group.game_slots(index)[0])]

    def open_game(self, group: Group, first: int, game: Game | None = None) -> list[Action]:
        """Open the environment of empty slots, if their problem has one, for ``game`` or for a new one.

        ``first``: the sample index of the first agent.
        """
        name = group.prompt.environment
        if not name:
            return []
        opened = self.episodes.new_id(group.group_id, first)
        game = game or Game.of(opened, group.prompt.agents)
        game.reopen(opened)
        self.book.set_game(group, first, game)
        self.episodes.asked(opened, self.now)
        seed = environment_seed(self.settings.seed, group.group_id)
        return [OpenEpisode(opened, name, group.prompt.problem_id, seed)]

    def close_game(self, group: Group, first: int, reason: DropReason) -> list[Action]:
        """End a game that goes on, without a rollout."""
        episode = group.slots[first].episode
        if episode is None:
            raise ValueError(f"slot {first} of group {group.group_id} has no episode")
        game = episode.game
        actions: list[Action] = [CloseEpisode(game.episode, reason)]
        for one in game.players:
            if one.pending is not None:
                actions.append(self._drop(self.book.end_turn(one), reason))
        self.episodes.closed(game.episode)
        self.book.set_game(group, first, None)
        return actions

    def dismiss(self, peer_id: PeerId) -> Action:
        """Return how a member of a run that is over is dismissed: to stop for good, or to reconnect later."""
        return StopPeer(peer_id, self.ended) if self.ended_for_good else EndSession(peer_id, self.ended)

    def _drop(self, attempt: Attempt, reason: DropReason) -> CloseAttempt:
        self.accounts.dropped[reason] += 1
        if reason != "delivered":
            self.members.reputation(attempt.peer_id).dropped += 1
        return CloseAttempt(attempt.lease_id, attempt.sample_index, reason)

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the threat model is broken (I2, I3, I6, I11)."""
        self.book.validate()
        going_on = [(game, (group.group_id, first)) for group in self.book for first, game in group.games()]
        self.episodes.validate(going_on)
        self.evaluations.validate()
        self.batches.validate()
        self.relay.validate()
        self.partials.validate()
        self.members.shares.validate()
        self.epochs.validate()
        self.ages.validate()
        assert self.staleness.gate_broken_by == 0, "I3: a rollout that was too old was trained"
        fillings = [filling for group in self.book for filling in group.fillings()]
        assert not any(self.epochs.is_orphan(one.newest_version) for one in fillings), "a rolled back rollout is kept"
        in_book = self.book.live_count + self.book.pending_count + sum(len(group.fillings()) for group in self.book)
        in_book += sum(len(group.live) + len(group.rollouts) for group in self.restored_groups)
        recording = self.batches.recording
        in_recording = 0 if recording is None else len(recording.rollout_ids)
        assert self.accounts.open == in_book + in_recording, "I11: the counts do not add up"
        workers = [one for one in self.members if one.role == "peer" and not one.reputation.quarantined]
        assert self.members.worker_count == len(workers), "workers"
