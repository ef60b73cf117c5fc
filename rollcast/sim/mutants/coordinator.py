"""Define the bugs to plant into the coordinator's core, its restart and its store."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from coordinator.core.decisions import epoch_change, evaluating, issuing, rollout_checks, rollouts, verdicts
from coordinator.core.decisions.rollouts import Rollouts
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import (
    AnswerUpload,
    CloseAttempt,
    CloseGroup,
    RecordBatch,
    ServeBatch,
    StoreRollout,
)
from coordinator.core.events.events import RolloutScored
from coordinator.core.events.restored import Restored
from coordinator.core.leases import batches, lease_book
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.evaluation_book import EvaluationBook
from coordinator.core.leases.groups import Finished, SlotState
from coordinator.core.leases.lease_book import LeaseBook
from coordinator.core.leases.partials import Partials
from coordinator.core.members.allowances import Allowances, Earned
from coordinator.core.members.membership import Reputation
from coordinator.core.presence import Presence
from coordinator.recovery import resume
from rollcast.sim.mutants.planting import Mutant, Patch, always, plain
from rollcast.sim.store.store import MemoryStore
from rollcast.sim.store.tables import Tables

# ---------------------------------------------------------------- I1


def _acknowledge_at_once(received: Any) -> Any:
    def mutated(self: Rollouts, event: Any, now: float) -> Any:
        actions = received(self, event, now)
        for action in actions:
            if isinstance(action, StoreRollout):
                self._storing[action.rollout_id].uploads.clear()
                one = event.rollout
                return [*actions, AnswerUpload(event.upload_id, one.lease_id, one.sample_index, True, "")]
        return actions

    return mutated


def _answer_before_commit(store_rollouts: Any) -> Any:
    def mutated(self: MemoryStore, actions: Any) -> Any:
        waiting = store_rollouts(self, actions)
        if self._process is not None and not waiting.done():
            self._process.later(0.0, waiting.notify)
        return waiting

    return mutated


def _only_scored(open_groups: Any) -> Any:
    def mutated(self: Tables) -> Any:
        return [
            replace(group, rollouts=tuple(one for one in group.rollouts if one.scored)) for group in open_groups(self)
        ]

    return mutated


def _one_batch_less(restored: Any) -> Any:
    async def mutated(*args: Any) -> Restored:
        found: Restored = await restored(*args)
        return replace(found, recorded_batches=max(0, found.recorded_batches - 1))

    return mutated


# ---------------------------------------------------------------- I2, I3


def _serve_at_once(form_batch: Any) -> Any:
    def mutated(state: CoreState, now: float) -> Any:
        actions = form_batch(state, now)
        return actions + [ServeBatch(one.step, replayed=False) for one in actions if isinstance(one, RecordBatch)]

    return mutated


def _keep_groups(form_batch: Any) -> Any:
    def mutated(state: CoreState, now: float) -> Any:
        remove, state.book.remove = state.book.remove, lambda groups: None  # type: ignore[method-assign]
        try:
            return form_batch(state, now)
        finally:
            state.book.remove = remove  # type: ignore[method-assign]

    return mutated


# ---------------------------------------------------------------- I6, I7


def _any_token(received: Any) -> Any:
    def mutated(self: Rollouts, event: Any, now: float) -> Any:
        rollout = event.rollout
        attempt = self._state.book.live_attempt((rollout.lease_id, rollout.sample_index))
        if attempt is not None and attempt.fencing_token != rollout.fencing_token:
            forged = replace(attempt, fencing_token=rollout.fencing_token)
            slot = self._state.book._groups[attempt.group_id].slots[attempt.sample_index]
            slot.live[slot.live.index(attempt)] = forged
            self._state.book._live[attempt.key] = forged
            self._state.book._live_by_peer[attempt.peer_id][attempt.key] = forged
        return received(self, event, now)

    return mutated


def _late_is_welcome(received: Any) -> Any:
    """Deduplicate by memory only: an attempt that ended is treated as one that never answered."""

    def mutated(self: Rollouts, event: Any, now: float) -> Any:
        book, rollout = self._state.book, event.rollout
        key = (rollout.lease_id, rollout.sample_index)
        group = book._groups.get(rollout.group_id)
        over = key not in self._storing_by_key and book.live_attempt(key) is None
        if over and group is not None and group.slots[rollout.sample_index].filling is None:
            attempt = Attempt(
                *(rollout.lease_id, rollout.fencing_token, rollout.group_id, rollout.sample_index),
                peer_id=event.peer_id,
                deadline=now + 10.0,
                prefix=None,
            )
            book._make_live(group, attempt)
        return received(self, event, now)

    return mutated


def _losers_stay(fill: Any) -> Any:
    def mutated(self: LeaseBook, *args: Any) -> Any:
        fill(self, *args)
        return []

    return mutated


def _believes(what: str) -> Any:
    """Return a change that takes this problem for none."""

    def change(check: Any) -> Any:
        def mutated(*args: Any) -> Any:
            problem = check(*args)
            return "" if what in problem else problem

        return mutated

    return change


def _form_believed(check: Any) -> Any:
    """Return a check that refuses nothing but a rollout that no policy generated, on which the coordinator ends."""

    def mutated(state: Any, peer_id: Any, rollout: Any, *args: Any) -> Any:
        generated = any(segment.role == "assistant" for segment in rollout.segments)
        return "" if generated else check(state, peer_id, rollout, *args)

    return mutated


# ---------------------------------------------------------------- seeds


def _seed_of_the_moment(slot: Any) -> Any:
    """Give each lease of a slot a new seed: who returns leases chooses among answers."""
    leased = itertools.count(1)
    return lambda index, seed, prefix: slot(index, seed ^ next(leased), prefix)


# ---------------------------------------------------------------- I8, I10, I11


def _remember_all(self: LeaseBook, attempt: Any, *, stored: bool) -> None:
    self._finished[attempt.key] = Finished(attempt.peer_id, attempt.group_id, stored)


def _much_room(init: Any) -> Any:
    return lambda self, tokens_max: init(self, 1000 * tokens_max)


def _never_scored(mark_scored: Any) -> Any:
    def mutated(self: LeaseBook, rollout_id: Any, reward: float = 0.0) -> Any:
        unscored = self.unscored
        done = mark_scored(self, rollout_id, reward)
        self.unscored = unscored
        return done

    return mutated


def _count_twice(drop: Any) -> Any:
    def mutated(self: CoreState, attempt: Any, reason: Any) -> Any:
        self.accounts.dropped[reason] += 1
        return drop(self, attempt, reason)

    return mutated


def _forget_fillings(drop_group: Any) -> Any:
    def mutated(self: CoreState, group: Any, reasons: Any, live_reason: Any) -> Any:
        fillings = {filling.attempt.key for filling in group.fillings()}
        actions = drop_group(self, group, reasons, live_reason)
        return [
            one
            for one in actions
            if not isinstance(one, CloseGroup)
            and not (isinstance(one, CloseAttempt) and (one.lease_id, one.sample_index) in fillings)
        ]

    return mutated


def _believe_words(accused: Any) -> Any:
    def mutated(self: Presence, event: Any, now: float) -> Any:
        return accused(self, replace(event, receipt=event.receipt or b"a word"), now)

    return mutated


def _forget_quarantines(restored: Any) -> Any:
    async def mutated(*args: Any) -> Restored:
        found: Restored = await restored(*args)
        return replace(found, quarantined={})

    return mutated


def _open_to_all(self: SlotState, lost: Any) -> bool:
    return self.filling is None


def _failed_is_zero(_failed: Any) -> Any:
    return lambda state, event, now: verdicts.scored(state, RolloutScored(event.rollout_id, 0.0), now)


# ---------------------------------------------------------------- evaluations

#: So many evaluations, by all peers, that each seed has samples with peers that lie or are lost.
_HOARDED = {"hoarders": 2}
_PICKED = {"pickers": 2}
_EVALUATING = {
    "evaluate_every_steps": 1,
    "evaluation_problems": 24,
    "evaluation_share": 1.0,
    "evaluation_deadline_s": 5.0,
}

MUTANTS = (
    Mutant(
        "acknowledge-before-commit",
        "I1",
        "an upload is acknowledged when its rollout is passed to the store, not when it is durable",
        (Patch(Rollouts, "received", _acknowledge_at_once),),
    ),
    Mutant(
        "store-answers-before-commit",
        "I1",
        "the store reports a change as made before it is on the disk",
        (Patch(MemoryStore, "store_rollouts", _answer_before_commit),),
    ),
    Mutant(
        "unscored-forgotten-at-restart",
        "I1",
        "a restarted coordinator restores only scored rollouts",
        (Patch(Tables, "open_groups", _only_scored),),
    ),
    Mutant(
        "batch-formed-anew-after-restart",
        "I2",
        "a restarted coordinator does not count the newest recorded batch",
        (Patch(resume, "_restored", _one_batch_less),),
    ),
    Mutant(
        "batch-served-before-recorded",
        "I2",
        "a batch is served when it is formed, not when it is durable",
        (Patch(rollouts, "form_batch", _serve_at_once),),
    ),
    Mutant(
        "batched-groups-stay-ready",
        "I2",
        "groups that went into a batch may go into the next one",
        (Patch(rollouts, "form_batch", _keep_groups),),
    ),
    Mutant(
        "no-staleness-recheck",
        "I3",
        "ages are not checked again when a batch is formed",
        (Patch(rollouts, "too_old", always(False)), Patch(batches, "too_old", always(False))),
    ),
    Mutant(
        "rolled-back-rollouts-trained",
        "I3",
        "a new epoch keeps rollouts of orphaned versions",
        (Patch(epoch_change, "drop_orphans", always([])),),
    ),
    Mutant(
        "no-fencing",
        "I6",
        "the fencing token of an upload is not compared",
        (Patch(Rollouts, "received", _any_token),),
    ),
    Mutant(
        "dedup-by-window",
        "I6",
        "a rollout of an attempt that is over is accepted if the slot is empty",
        (Patch(Rollouts, "received", _late_is_welcome),),
    ),
    Mutant(
        "lease-ids-used-again",
        "I6",
        "after a crash lease ids continue above the stored ones, not above the sent ones",
        (Patch(Restored, "ids_before", plain(property(lambda self: _stored_last(self)))),),
    ),
    Mutant(
        "losers-stay-live",
        "I6",
        "the other attempt at a slot continues when the first one's rollout has arrived",
        (Patch(LeaseBook, "fill", _losers_stay),),
    ),
    Mutant(
        "third-attempt",
        "I6",
        "a slot is leased as often as peers request work",
        (Patch(SlotState, "open", plain(_open_to_all)), Patch(lease_book, "LIVE_ATTEMPTS_MAX", plain(99))),
    ),
    Mutant(
        "form-not-checked",
        "I7",
        "a rollout's claims are not checked before it is stored",
        (Patch(rollouts, "malformed_rollout", _form_believed),),
    ),
    Mutant(
        "any-role-believed",
        "I7",
        "a peer's segments may have the role of an environment's",
        (Patch(rollout_checks, "_malformed_segment", _believes("uploaded a segment of role")),),
    ),
    Mutant(
        "any-author-believed",
        "I7",
        "a peer may upload what it says that another one generated",
        (Patch(rollout_checks, "_malformed_segment", _believes("generated by another peer")),),
    ),
    Mutant(
        "any-version-believed",
        "I7",
        "a rollout may claim a version that was never published",
        (Patch(rollout_checks, "_malformed_segment", _believes("which was not published")),),
    ),
    Mutant(
        "any-length-believed",
        "I7",
        "a rollout may be longer than was leased",
        (Patch(rollouts, "malformed_rollout", _believes("generated tokens, where 1 to")),),
    ),
    Mutant(
        "seeds-shared",
        "seed",
        "all slots have one seed, so that an answer can be copied",
        (Patch(lease_book, "slot_seed", always(7)),),
    ),
    Mutant(
        "seed-of-the-moment",
        "seed",
        "a slot that is issued again gets another seed, so that returning leases chooses among answers",
        (Patch(issuing, "Slot", _seed_of_the_moment),),
    ),
    Mutant(
        "finished-attempts-for-ever",
        "I8",
        "finished attempts are remembered without a bound",
        (Patch(LeaseBook, "_remember", plain(_remember_all)),),
    ),
    Mutant(
        "partial-results-unbounded",
        "I8",
        "partial results of running attempts are kept without a bound",
        (Patch(Partials, "__init__", _much_room),),
    ),
    Mutant(
        "accused-without-a-receipt",
        "I9",
        "an accusation is believed without the accused peer's receipt",
        (Patch(Presence, "accused", _believe_words),),
    ),
    Mutant(
        "quarantine-forgotten-at-restart",
        "I9",
        "a restarted coordinator does not know which peers are quarantined",
        (Patch(resume, "_restored", _forget_quarantines),),
    ),
    Mutant(
        "quarantined-peers-work",
        "I9",
        "a quarantined peer still gets leases",
        (
            Patch(Reputation, "kept_out", plain(property(lambda reputation: reputation.banned))),
            Patch(Reputation, "is_on", plain(property(lambda one: not (one.banned or one.switched_off)))),
        ),
    ),
    Mutant(
        "scoring-queue-leaks",
        "I10",
        "scored rollouts still count as unscored: intake is busy for ever",
        (Patch(LeaseBook, "mark_scored", _never_scored),),
    ),
    Mutant(
        "leases-never-expire",
        "deadline",
        "a lease whose peer is lost never expires",
        (Patch(LeaseBook, "expired", always([])), Patch(LeaseBook, "lose", always(None))),
    ),
    Mutant(
        "drop-counted-twice",
        "I11",
        "a dropped attempt is counted twice",
        (Patch(CoreState, "_drop", _count_twice),),
    ),
    Mutant(
        "dropped-groups-not-closed",
        "I11",
        "the rollouts of a dropped group are counted, but stay open in the store",
        (Patch(CoreState, "drop_group", _forget_fillings),),
    ),
    Mutant(
        "slots-as-asked-for",
        "starve",
        "a peer may hold as many slots as it asks for",
        (Patch(Allowances, "most_of", always(1 << 16)), Patch(Allowances, "most_on_trial", always(1 << 16))),
        _HOARDED,
    ),
    Mutant(
        "losses-cost-nothing",
        "starve",
        "leases that expire lower nothing that their peer may hold",
        (Patch(Earned, "lost", always(False)),),
        _HOARDED | {"lease_deadline_s": 4.0},  # so that leases expire often enough within the run
    ),
    Mutant(
        "answered-with-any-version",
        "version",
        "a peer may generate with an older version than one that it used before the lease",
        (Patch(rollouts, "version_chosen", always("")),),
        _PICKED,
    ),
    Mutant(
        "evaluated-with-any-version",
        "evaluation",
        "neither the version nor the form of an evaluation's rollouts is checked",
        (Patch(evaluating, "_malformed", always("")),),
        _EVALUATING,
    ),
    Mutant(
        "evaluation-leases-never-expire",
        "evaluation",
        "the samples of a lost peer are not leased again, and no deadline ends the evaluation",
        (
            Patch(EvaluationBook, "expired", always([])),
            Patch(EvaluationBook, "left", always(None)),
            Patch(evaluating, "_hopeless", always("")),
        ),
        _EVALUATING,
    ),
    Mutant(
        "outage-trained-as-zero",
        "unscored",
        "a rollout that the verifier fails on gets the reward 0",
        (Patch(verdicts, "failed", _failed_is_zero),),
    ),
)


def _stored_last(restored: Restored) -> int:
    base = 1 << 32
    live = [one.lease_id for group in restored.groups for one in group.live]
    filled = [one.attempt.lease_id for group in restored.groups for one in group.rollouts]
    return max([base, *live, *filled])
