"""Take a rollout through the coordinator: received, checked, stored, scored, in a batch, trained.

    upload ─► checks ─► stored ─► scored ─► its group is ready ─► in a batch ─► the batch is recorded, then served
                │                              │
                └► refused for a counted reason └► dropped: too old, without advantage, or unscorable

Nothing is acknowledged before it is durable (I1), and a batch is recorded durably before it is served. Whatever passes
the checks may be stored and trained on, so nothing may pass that the learner cannot compute with; bounds of single
fields were checked where the message was parsed.

Online selection (dynamic sampling, DAPO, arXiv 2503.14476, section 3.2): a group whose rewards are all the same has no
advantage, so its gradient is zero. If the run is configured so, such a group is dropped as soon as it is scored, and
prompts are sampled until the batch is full of groups whose rewards differ. How many are dropped for one batch is
bounded, so that a policy that is right (or wrong) everywhere still makes steps.

A turn of an episode takes the way of decisions/episodes.py from its checks on, and comes back when the episode ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.core.decisions.episodes import Episodes, drop_stale_turns, prefix_of_lease
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.rollout_checks import (
    longest_of,
    malformed_partial,
    malformed_rollout,
    sent_past_its_end,
    unfinished,
    version_chosen,
    whole_of,
)
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    DeliverRollout,
    Note,
    Penalise,
    RecordBatch,
    ScoreRollout,
    ServeBatch,
    StoreEpisode,
    StoreRollout,
    together,
)
from coordinator.core.events.episode_events import CloseEpisode
from coordinator.core.events.events import (
    BatchRecorded,
    BatchRequested,
    MalformedRollout,
    PartialReceived,
    RolloutReceived,
    RolloutStored,
    TurnStored,
)
from coordinator.core.leases.attempts import Attempt, AttemptKey, Prefix
from coordinator.core.leases.batches import too_old
from coordinator.core.leases.drop_counts import DropReason, RefusalReason
from coordinator.core.leases.episodes import Episode, EpisodeEnd, Game
from coordinator.core.leases.groups import Group
from coordinator.core.leases.partials import bare
from rollcast.wire.ids import PeerId, RolloutId, Step, UploadId, Version
from rollcast.wire.rollout_messages import with_body
from rollcast.wire.rollouts import Rollout, authors_of, last_turn, tokens_of

_UPLOADS_WAITING_MAX = 8  # repeated uploads of one rollout that wait for it to be stored


@dataclass(slots=True)
class _Storing:
    """A rollout between StoreRollout and RolloutStored."""

    peer_id: PeerId
    rollout: Rollout
    attempt: Attempt
    uploads: list[UploadId]
    reward: float | None = None  # of an episode, which its environment has scored


class Rollouts:
    """Rollouts from their upload to the order to score them."""

    def __init__(self, state: CoreState, *, last_rollout: int) -> None:
        self._state = state
        self._storing: dict[RolloutId, _Storing] = {}
        self._storing_by_key: dict[AttemptKey, RolloutId] = {}
        self._last_rollout = last_rollout
        self.episodes = Episodes(state, self._store_game)

    # ---------------------------------------------------------------- received and checked

    def received(self, event: RolloutReceived, now: float) -> list[Action]:
        """Check an upload, from the cheapest check to the most expensive one, and store what is good."""
        rollout, state = event.rollout, self._state
        key = (rollout.lease_id, rollout.sample_index)
        storing = self._storing_by_key.get(key)
        if storing is not None:
            return self._repeated_while_storing(event, self._storing[storing])
        answers = self.episodes.repeated(event, key)
        if answers is not None:
            return answers
        attempt = state.book.live_attempt(key)
        if attempt is None:
            return self._answer_known(event, key)
        if attempt.peer_id != event.peer_id:
            return self._accuse(event, "uploaded under another peer's lease")
        if attempt.fencing_token != rollout.fencing_token or attempt.group_id != rollout.group_id:
            return self._accuse(event, "uploaded with a wrong fencing token")
        episode = state.book.group(attempt.group_id).slots[attempt.sample_index].episode
        if state.book.unscored >= state.settings.scoring_queue_max or (episode is not None and episode.is_replayed):
            return [self._refuse(event, "busy")]
        prefix = prefix_of_lease(attempt, episode)
        segments = whole_of(rollout, prefix)
        if segments is None:
            return self._wrong_prefix(event, attempt)
        whole = replace(rollout, segments=segments) if rollout.prefix_digest else rollout
        is_cell = state.members.is_cell(event.peer_id)
        refused = self._refuse_content(event, attempt, whole, prefix, is_cell=is_cell)
        if refused is not None:
            return refused
        if rollout.finish_reason == "interrupted":  # another peer continues it
            if event.text_end is None:
                self._keep_interrupted(attempt, whole)
            return self._close(event, attempt, "returned")
        # The age of a rollout is the step of its batch minus its oldest version; every later batch makes it older.
        if state.batches.next_step - whole.oldest_version > state.rules.gate(state.batches.next_step):
            return self._close(event, attempt, "stale")
        state.forecast.answered(attempt, now, tokens_of(last_turn(segments)), rollout.generate_s)
        if is_cell:  # what is found about the authors of its tokens has to reach it
            state.members.generated_in_cell(event.peer_id, authors_of(rollout.segments))
        newest_own = max((one.version for one in rollout.segments if one.peer_id == event.peer_id), default=Version(0))
        state.members.reputation(event.peer_id).generated_with(newest_own)
        if episode is not None:
            return self.episodes.take(event, attempt, episode, segments, now)
        return self._store(event, attempt)

    def _wrong_prefix(self, event: RolloutReceived, attempt: Attempt) -> list[Action]:
        """Close the attempt of a turn that follows on something else than its lease has."""
        if attempt.prefix is None:  # what an earlier coordinator gave it is not known exactly
            return self._close(event, attempt, "revoked")
        what = "uploaded a turn that does not follow on the prefix of its lease"
        return [self._penalise(event.peer_id, what), *self._close(event, attempt, "malformed")]

    def _refuse_content(
        self, event: RolloutReceived, attempt: Attempt, rollout: Rollout, prefix: Prefix, *, is_cell: bool
    ) -> list[Action] | None:
        """Close the attempt if its rollout cannot be trained on; return None if it can."""
        state, own = self._state, event.rollout
        if state.epochs.is_any_orphan(rollout.segments):
            return self._close(event, attempt, "rolled_back")  # not its fault: it may not know of the epoch yet
        convicted = [one for one in authors_of(own.segments) if state.members.kept_out_because(one)] if is_cell else []
        if convicted:  # the cell may not have heard of it
            reports = [state.report_to_cell(event.peer_id, one) for one in convicted]
            return [*reports, *self._close(event, attempt, "audit_failed")]
        is_others = any(segment.peer_id != event.peer_id for segment in own.segments)
        if attempt.prefix is None and is_others and not is_cell:
            return self._close(event, attempt, "revoked")  # it may continue what an earlier coordinator gave it
        culprit = sent_past_its_end(prefix, event.text_end)
        if culprit is not None:  # a peer that continued from there could not know
            what = "sent a partial rollout that contains a stop string"
            return [self._penalise(culprit, what), *self._close(event, attempt, "revoked")]
        longest = longest_of(state, attempt)
        malformed = malformed_rollout(state, event.peer_id, rollout, prefix, event.text_end, longest)
        malformed = malformed or self._wrong_routes(own, attempt, prefix)
        if malformed:
            return [self._penalise(event.peer_id, malformed), *self._close(event, attempt, "malformed")]
        chosen = version_chosen(rollout.segments[len(prefix) :], attempt)
        if chosen and not is_cell:  # a cell checks the versions of each of its members
            return [self._penalise(event.peer_id, chosen), *self._close(event, attempt, "older_version")]
        return None

    def _wrong_routes(self, own: Rollout, attempt: Attempt, prefix: Prefix) -> str:
        """Return what is wrong with the routes of an upload, if it has any; empty if they are for its prompt."""
        if not own.routed_prompt_tokens:
            return ""
        before = self._state.book.prompt_length(attempt.group_id) + (tokens_of(prefix) if own.prefix_digest else 0)
        return "" if own.routed_prompt_tokens == before else "uploaded routes for a prompt of another length"

    def _store(self, event: RolloutReceived, attempt: Attempt) -> list[Action]:
        """Fill the slot, store the rollout, and close the other attempt at the slot, which came too late."""
        state, rollout = self._state, event.rollout
        if (attempt.group_id, attempt.sample_index) in state.partials.slots:
            state.partials.filled(attempt.group_id, attempt.sample_index)
        self._last_rollout += 1
        rollout_id = RolloutId(self._last_rollout)
        versions = [segment.version for segment in rollout.segments]
        losers = state.book.fill(attempt, rollout_id, min(versions), max(versions), authors_of(rollout.segments))
        self._storing[rollout_id] = _Storing(event.peer_id, rollout, attempt, [event.upload_id])
        self._storing_by_key[attempt.key] = rollout_id
        actions: list[Action] = [StoreRollout(rollout_id, event.peer_id, rollout)]
        return actions + state.close_attempts(losers, "late_duplicate", notify_peers=True) if losers else actions

    def _store_game(self, group: Group, first: int, game: Game, end: EpisodeEnd) -> list[Action]:
        """Fill the slots of a game that has ended with its episodes, and store them with their rewards, all at once."""
        state = self._state
        seconds = None if game.issued_at is None else state.now - game.issued_at
        state.forecast.episode_ended(game.turn_count, len(game.players), seconds)
        state.episodes.ended[end] += 1
        state.episodes.closed(game.episode)
        stored: list[Action] = [
            self._store_episode(group, index, episode, end)
            for index, episode in zip(group.game_slots(first), game.players, strict=True)
        ]
        return [*together(stored), CloseEpisode(game.episode, end)]

    def _store_episode(self, group: Group, index: int, episode: Episode, end: EpisodeEnd) -> StoreEpisode:
        """Fill the slot of an episode that has ended with all of it."""
        self._last_rollout += 1
        rollout_id = RolloutId(self._last_rollout)
        segments = tuple(segment for turn in episode.turns for segment in turn.segments)
        oldest, newest = episode.oldest_version, episode.newest_version
        if oldest is None or newest is None:
            raise ValueError(f"episode {episode.game.episode} ended without a turn")
        attempt = self._state.book.fill_pending(episode, rollout_id, oldest, newest)
        ended = Rollout(
            *(attempt.lease_id, attempt.fencing_token, group.group_id, index, segments),
            *("stop" if end == "done" else "length", 0.0),
        )
        parts = [part for turn in episode.turns for part in (turn.observation, turn.body) if part is not None]
        rollout = with_body(ended, parts)
        self._storing[rollout_id] = _Storing(attempt.peer_id, rollout, attempt, [], episode.reward)
        self._storing_by_key[attempt.key] = rollout_id
        return StoreEpisode(rollout_id, attempt.peer_id, group.prompt.problem_id, rollout, episode.reward)

    def _keep_interrupted(self, attempt: Attempt, rollout: Rollout) -> None:
        given = attempt.prefix or ()
        own = bare(rollout.segments[len(given) :])
        if own and not unfinished(self._state, own, tokens_of(given), longest_of(self._state, attempt)):
            self._state.partials.add(attempt, tokens_of(given), own)

    def partial(self, event: PartialReceived) -> list[Action]:
        """Keep what a running attempt generated; what is not of a live attempt of the peer's own is out of date."""
        partial = event.partial
        attempt = self._state.book.live_attempt((partial.lease_id, partial.sample_index))
        if attempt is None or attempt.peer_id != event.peer_id or attempt.fencing_token != partial.fencing_token:
            return []
        if self._state.epochs.is_any_orphan(partial.segments):
            return []
        longest = longest_of(self._state, attempt)
        malformed = malformed_partial(self._state, event.peer_id, partial, longest)
        malformed = malformed or version_chosen(partial.segments, attempt)
        if malformed:
            return [self._penalise(event.peer_id, malformed)]
        self._state.partials.add(attempt, partial.position, bare(partial.segments))
        return []

    def malformed(self, event: MalformedRollout) -> list[Action]:
        """Close the attempt of an upload that cannot be parsed, if it is its sender's; no other peer's attempt."""
        answer = AnswerUpload(event.upload_id, event.lease_id, event.sample_index, False, "malformed")
        attempt = self._state.book.live_attempt((event.lease_id, event.sample_index))
        if attempt is None or (attempt.peer_id, attempt.fencing_token) != (event.peer_id, event.fencing_token):
            self._state.accounts.uploads_refused["malformed"] += 1
            return [answer]
        what = f"uploaded a malformed rollout: {event.problem}"
        return [self._penalise(event.peer_id, what), self._state.close_attempt(attempt, "malformed"), answer]

    # ---------------------------------------------------------------- stored

    def stored(self, event: RolloutStored, now: float) -> list[Action]:
        """Acknowledge a rollout that is durable, then have it scored unless its group was dropped meanwhile."""
        storing = self._storing.pop(event.rollout_id)
        rollout = storing.rollout
        del self._storing_by_key[(rollout.lease_id, rollout.sample_index)]
        self._state.accounts.accepted += 1
        if storing.reward is None:  # the turns of an episode were counted one by one
            self._delivered(storing.attempt)
        actions: list[Action] = [
            AnswerUpload(upload_id, rollout.lease_id, rollout.sample_index, True, "") for upload_id in storing.uploads
        ]
        group = self._state.book.mark_stored(event.rollout_id)
        if storing.reward is not None:
            return actions + self._episode_stored(event.rollout_id, storing.reward, now)
        if group is not None and group.lent is not None:
            self._state.book.mark_scored(event.rollout_id)  # the head scores it
            return [*actions, DeliverRollout(event.rollout_id)]
        if group is not None:
            score = ScoreRollout(event.rollout_id, group.prompt.problem_id, rollout.packed_completion)
            if self._state.scoring.begin(score, now):
                actions.append(score)
        return actions

    def _episode_stored(self, rollout_id: RolloutId, reward: float, now: float) -> list[Action]:
        """Keep the reward that the environment gave. If it completes its group, that is reviewed, as after a score."""
        state = self._state
        state.book.mark_scored(rollout_id, reward)
        group = state.book.ready_group_of(rollout_id)
        changed = [*([] if group is None else review(state, group)), *form_batch(state, now)]
        return changed + issue(state, now) if changed else []

    def turn_stored(self, event: TurnStored) -> list[Action]:
        """Acknowledge a turn of an episode that is durable."""
        return self.episodes.stored(event, self._delivered)

    def _delivered(self, attempt: Attempt) -> None:
        """Count a rollout, or a turn, that is durable for its peer."""
        members = self._state.members
        reputation = members.reputation(attempt.peer_id)
        reputation.accepted += 1
        reputation.returns = 0
        member = members.get(attempt.peer_id)
        most = self._state.most_held(0 if member is None else member.concurrent_rollouts)
        members.delivered(attempt, self._state.allowances, most, self._state.now)

    # ---------------------------------------------------------------- answers to uploads

    def _repeated_while_storing(self, event: RolloutReceived, storing: _Storing) -> list[Action]:
        if event.peer_id != storing.peer_id or event.rollout.fencing_token != storing.rollout.fencing_token:
            return [self._refuse(event, "fenced")]
        if len(storing.uploads) >= _UPLOADS_WAITING_MAX:
            return [self._refuse(event, "busy")]
        storing.uploads.append(event.upload_id)
        return []

    def _answer_known(self, event: RolloutReceived, key: AttemptKey) -> list[Action]:
        """Answer an upload whose attempt is over: the same answer as before, however often it is repeated."""
        book = self._state.book
        filling, finished = book.filling_of(key), book.finished(key)
        if filling is not None and filling.attempt.peer_id == event.peer_id:
            return [self._accept(event)]
        pending = book.pending(key)
        if pending is not None and pending.peer_id == event.peer_id:
            return [self._accept(event)]
        if finished is None:  # never issued, or over for too long to be remembered
            return [self._refuse(event, "fenced")]
        if finished.stored and finished.peer_id == event.peer_id:
            return [self._accept(event)]
        if self._state.ended:
            return [self._refuse(event, "run_ended")]
        filled = not finished.stored and book.slot_is_filled(finished.group_id, event.rollout.sample_index)
        return [self._refuse(event, "late_duplicate" if filled else "fenced")]

    def _close(self, event: RolloutReceived, attempt: Attempt, reason: DropReason) -> list[Action]:
        closed = self._state.close_attempt(attempt, reason)
        return [closed, AnswerUpload(event.upload_id, attempt.lease_id, attempt.sample_index, False, reason)]

    def _penalise(self, peer_id: PeerId, what: str) -> Penalise:
        self._state.partials.doubt(peer_id)
        return Penalise(peer_id, what, False)

    def _accuse(self, event: RolloutReceived, what: str) -> list[Action]:
        return [Penalise(event.peer_id, what, False), self._refuse(event, "fenced")]

    def _accept(self, event: RolloutReceived) -> AnswerUpload:
        return AnswerUpload(event.upload_id, event.rollout.lease_id, event.rollout.sample_index, True, "")

    def _refuse(self, event: RolloutReceived, reason: RefusalReason) -> AnswerUpload:
        self._state.accounts.uploads_refused[reason] += 1
        return AnswerUpload(event.upload_id, event.rollout.lease_id, event.rollout.sample_index, False, reason)

    def validate(self) -> None:
        """Raise AssertionError when the two indices disagree."""
        keys = {(one.rollout.lease_id, one.rollout.sample_index): rid for rid, one in self._storing.items()}
        assert keys == self._storing_by_key, "rollouts being stored"
        self.episodes.validate()


# ---------------------------------------------------------------- groups without advantage


def started(state: CoreState) -> list[Action]:
    """Review every group that was ready before a restart: the crash may have come before the drop."""
    actions: list[Action] = []
    for group in state.book.ready_groups():
        actions += review(state, group)
    return actions


def review(state: CoreState, group: Group) -> list[Action]:
    """Drop a ready group without advantage, if the run is configured to."""
    settings, usefulness = state.settings, state.usefulness
    if not settings.drop_without_advantage or state.ended:
        return []
    useless = without_advantage(group)
    usefulness.seen(useful=not useless)
    if not useless or usefulness.dropped >= settings.drops_per_step_max:
        return []
    usefulness.dropped += 1
    return state.drop_group(group, ["no_advantage"] * len(group.slots), "no_advantage")


def without_advantage(group: Group) -> bool:
    """Whether all rollouts of a ready group have the same reward; agents are compared with their own kind only."""
    fillings, agents = group.fillings(), group.prompt.agents
    return all(len({one.reward for one in fillings[agent::agents]}) == 1 for agent in range(agents))


# ---------------------------------------------------------------- in a batch


def batch_requested(state: CoreState, event: BatchRequested, now: float) -> list[Action]:
    """Serve a recorded batch again, or form this one as soon as there is enough."""
    batches = state.batches
    if batches.is_recorded(event.step):
        unseen = state.unseen.newest if event.step + 1 == batches.recorded else ()
        return [ServeBatch(event.step, replayed=True, unseen=unseen)]
    if batches.recording is not None and batches.recording.step == event.step:
        return []  # served when it is recorded
    if event.step != batches.next_step or event.step >= state.settings.steps:
        expected = f"the next batch is for step {batches.next_step + 1} of {state.settings.steps}"
        return [Note("batch_out_of_order", f"step {event.step + 1}", expected)]
    if state.last_step is not None:
        return []
    batches.wanted = event.step
    return drop_stale(state) + form_batch(state, now)


def form_batch(state: CoreState, now: float) -> list[Action]:
    """Form the batch that the learner waits for, if enough groups are ready and young enough."""
    if state.batches.wanted is None or state.holds_work:
        state.late_wait.cancel(now)
        return []
    if state.book.ready_count < state.settings.groups_per_step:
        return []
    age_max = state.rules.gate(state.batches.wanted)
    groups = state.batches.choose(state.book.ready_groups(), age_max)
    if not groups or _held_back(state, groups, now):
        return []
    batch = state.batches.form(groups, age_max)
    state.book.remove(batch.groups)
    return [RecordBatch(batch.step, batch.rollout_ids)]


def batch_recorded(state: CoreState, event: BatchRecorded, now: float) -> list[Action]:
    """Count a durable batch as trained, serve it, and drop what is too old for the next step."""
    batch = state.batches.record()
    if batch.step != event.step:
        raise ValueError(f"batch {event.step} was recorded while batch {batch.step} was formed")
    for age in batch.ages:
        state.staleness.trained(age, batch.age_max)
        state.late.corrected += age > state.rules.limit
    state.accounts.trained += len(batch.rollout_ids)
    state.usefulness.batch_recorded()
    state.group_yield.ended(len(batch.groups), in_time=True)
    if state.rules.follows_broadcasts:
        state.rules.follow(
            t_bcast_p95_s=state.dissemination.seconds.percentile(95),
            t_gen_p90_s=state.forecast.generate_p90_s(),
            step_period_s=state.forecast.step_period_s,
        )
    oldest_kept = Version(max(state.rules.kept.oldest, event.step - state.rules.limit))
    unseen = state.unseen.take(len(batch.rollout_ids), oldest_kept)
    return [ServeBatch(event.step, replayed=False, unseen=unseen), *drop_stale(state), *form_batch(state, now)]


def drop_stale(state: CoreState) -> list[Action]:
    """Drop every group that holds a rollout too old for the next batch, and so for every later one.

    Needed only when the next step changes: uploads that are too old already are refused.
    """
    step = state.batches.next_step
    age_max = state.rules.gate(step)
    actions: list[Action] = []
    for group in [group for group in state.book if too_old(group, step, age_max)]:
        if not group.ready:
            state.group_yield.ended(1, in_time=False)
        actions += state.drop_group(group, _reasons(group, step, age_max), "group_stale")
    return actions + drop_stale_turns(state, step, age_max)


def _reasons(group: Group, step: Step, age_max: int) -> list[DropReason]:
    return ["stale" if step - filling.oldest_version > age_max else "group_stale" for filling in group.fillings()]


def _held_back(state: CoreState, chosen: tuple[Group, ...], now: float) -> bool:
    """Whether the batch waits for a group in flight that is young enough for it and not for the next one."""
    rules = state.rules.rules
    if rules.late_policy != "wait":
        return False
    return state.late_wait.hold(now, rules.late_wait_s, for_late_group=_is_any_late(state, chosen))


def _is_any_late(state: CoreState, chosen: tuple[Group, ...]) -> bool:
    following = Step(state.batches.next_step + 1)
    age_max = state.rules.gate(following)
    if all(too_old(group, following, age_max) for group in chosen):
        return False  # there is no room for it: every group that could be left out is too old for the next batch too
    return any(not group.ready and too_old(group, following, age_max) for group in state.book)
