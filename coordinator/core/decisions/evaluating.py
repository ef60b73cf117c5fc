"""Have peers evaluate versions: lease held-out problems to them, check what they send, and keep its scores.

A peer that evaluates keeps the version that is measured until it is done, so what it generated for training meanwhile
would be old. Evaluations therefore have few peers for themselves rather than some slots of many: a share of the fleet
(``CoreSettings.evaluation_share``), and one peer at least. These get no other work while samples wait, and enough of
them that they never run out and swap to a newer version. Once no batch is left to be formed, all peers may evaluate.

If a problem has an environment, a sample is leased again after each of its answers, with all turns before as its
prefix, until the environment has ended or a limit is reached. The shell keeps the game (coordinator/prompts/
evaluation_games.py) and decides whether it goes on; here a sample is a completion that grows. Between two turns a
sample is at no peer, so its lease names the seconds for which the peer keeps the version all the same.

Rollouts of evaluations are neither stored nor counted with those of training, and no batch can contain one: the two
have books of their own. An evaluation ends with scores, or it is given up with a reason: at its deadline, when no
member can generate its version, when an epoch is opened, or at the end of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from coordinator.core.decisions.rollout_checks import malformed_rollout, whole_of
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    Note,
    Penalise,
    RevokeLeases,
    ScoreEvaluation,
    SendLeases,
)
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.evaluation_events import (
    EvaluationAnswered,
    EvaluationKey,
    EvaluationRequested,
    EvaluationScored,
    EvaluationUnscorable,
)
from coordinator.core.events.events import MalformedRollout, RolloutReceived
from coordinator.core.leases.attempts import Prefix
from coordinator.core.leases.drop_counts import RefusalReason
from coordinator.core.leases.evaluation_book import (
    NO_TURNS,
    SAMPLES_MAX,
    UNDER_WAY_MAX,
    Evaluation,
    EvaluationAttempt,
    Turns,
)
from coordinator.core.members.membership import Member
from rollcast.wire.evaluation import KEPT_PROBLEMS, evaluation_seed
from rollcast.wire.ids import GroupId, LeaseId, PeerId, RolloutId
from rollcast.wire.rollout_messages import body_of, with_body
from rollcast.wire.rollouts import LeaseGrant, Rollout, Slot, packed_turn

NO_PEER_S = 30.0
"""Seconds without any peer after which an evaluation is given up."""
ALL_NEWER_S = 10.0
"""Seconds with newer versions at every peer until the same: only a peer that reconnects may still have the old one."""
RETURN_REST_S = 5.0
"""Seconds for which a peer that returned a lease of an evaluation, or let it expire, gets no other one."""

KEEP_VERSION_S = 10.0
"""Seconds for which a peer keeps the version after a turn that an environment may answer. A peer that swaps earlier
cannot take the next turn, and versions never go back."""

_SAMPLE_BITS = 8  # of the id by which an audit names an evaluation's rollout: above all ids of stored ones
_NO_GROUP = GroupId(0)  # groups are numbered from 1


# ---------------------------------------------------------------- evaluations


def requested(state: CoreState, event: EvaluationRequested, now: float) -> list[Action]:
    """Begin an evaluation; a repeated request changes nothing."""
    book, key = state.evaluations, event.key
    if book.get(key) is not None:
        return []
    epoch = state.epochs.epoch_of(key.version)
    evaluation = book.begin(event, epoch, now)
    refused = _why_refused(state, evaluation)
    if refused:
        return _give_up(state, evaluation, refused, now)
    samples = "1 sample" if key.samples == 1 else f"{key.samples} samples"
    detail = f"{samples} of each of the {len(event.problems)} problems of {key.set_name}"
    return [Note("evaluation_begun", _name(key), detail), *_reconsider(state, now)]


def _why_refused(state: CoreState, evaluation: Evaluation) -> str:
    key = evaluation.request.key
    if state.ended:
        return state.ended
    if not state.announced.is_published(evaluation.epoch, key.version):
        return f"version {key.version} is not published"
    if evaluation.epoch != state.epochs.current:
        return f"version {key.version} is of an epoch that is over"
    if not 0 < evaluation.samples <= SAMPLES_MAX:
        return f"it has {evaluation.samples} samples, not 1 to {SAMPLES_MAX}"
    return "" if len(state.evaluations.under_way()) <= UNDER_WAY_MAX else "too many evaluations are under way"


def give_up_all(state: CoreState, reason: str, now: float) -> list[Action]:
    """Give up every evaluation, because the run ends or continues in a new epoch."""
    return [action for one in state.evaluations.under_way() for action in _give_up(state, one, reason, now)]


def _give_up(state: CoreState, evaluation: Evaluation, reason: str, now: float) -> list[Action]:
    state.members.changed(state.evaluations.peers)
    over = _end(state, evaluation, now, reason)
    return [*over, Note("evaluation_given_up", _name(evaluation.request.key), reason)]


def _end(state: CoreState, evaluation: Evaluation, now: float, given_up: str = "") -> list[Action]:
    """End an evaluation; peers that hold its leases stop, and those that kept its version may swap."""
    kept = dict(evaluation.newest_leases)
    closed = state.evaluations.end(evaluation, now, given_up=given_up)
    for attempt in closed:
        kept.pop(attempt.peer_id, None)
    released: list[Action] = [RevokeLeases(peer_id, (lease,), "evaluation_over") for peer_id, lease in kept.items()]
    return [*state.evaluations.revocations(closed, "evaluation_over"), *released]


def tick(state: CoreState, now: float) -> list[Action]:
    """Issue samples whose leases expired again, and give up the evaluations that cannot be completed."""
    book = state.evaluations
    book.forget(now)
    if not book.under_way():
        return []
    expired = book.expired(state.lease_clock.at(now))
    _close(state, expired)
    for attempt in expired:  # others come first, else whoever lets leases expire could hold up every evaluation
        state.members.reputation(attempt.peer_id).evaluates_from = now + RETURN_REST_S
    return book.revocations(expired, "lease_expired") + _reconsider(state, now)


def _reconsider(state: CoreState, now: float) -> list[Action]:
    """Count the fleet, give up what has no hope, and give open samples to members that asked for work."""
    book = state.evaluations
    members = [member for member in state.members if member.may_work and not member.is_cell]  # cells do not evaluate
    book.fleet_slots = sum(member.concurrent_rollouts for member in members)
    actions: list[Action] = []
    for evaluation in book.under_way():
        reason = _hopeless(evaluation, members, now)
        if reason:
            actions += _give_up(state, evaluation, reason, now)
    for member in sorted(members, key=lambda one: one.peer_id not in book.peers):
        actions += give(state, member, now)
    return actions


def _hopeless(evaluation: Evaluation, members: list[Member], now: float) -> str:
    """Return why the evaluation is to be given up; empty if it goes on."""
    version = evaluation.request.key.version
    if now >= evaluation.deadline:
        scored = f"{evaluation.scored} of {evaluation.samples} samples are scored"
        return f"its deadline of {evaluation.request.deadline_s:g} s has passed; {scored}"
    if evaluation.live or not evaluation.open or any(_oldest_held(member) <= version for member in members):
        evaluation.hopeless_since = None
        return ""
    if evaluation.hopeless_since is None:
        evaluation.hopeless_since = now
    if now - evaluation.hopeless_since < (ALL_NEWER_S if members else NO_PEER_S):
        return ""
    return "there is no peer" if not members else f"every peer has a newer version than {version}"


def _oldest_held(member: Member) -> float:
    """Return the oldest version that the member may still generate with."""
    held = math.inf if member.version is None else member.version
    active = None if member.facts is None else member.facts.active_version
    return held if active is None else min(held, active)


# ---------------------------------------------------------------- leases


def give(state: CoreState, member: Member, now: float) -> list[Action]:
    """Lease open samples to a member that asked for work, or evaluates already: as many as it may hold at once.

    Slots that it holds for training do not count: peers accept up to twice the slots that they may hold. As for
    training, what it delivered limits them, and not only what it asks for.
    """
    book = state.evaluations
    if state.paused or state.scoring.pause is not None or not book.has_open() or not _may_evaluate(state, member, now):
        return []
    asked = int(state.settings.prefetch_batches * member.concurrent_rollouts)
    room = min(asked, state.allowances.most_of(member.reputation.earned)) - len(book.held_by(member.peer_id))
    grants: list[LeaseGrant] = []
    for evaluation in book.under_way():
        while room > 0 and evaluation.open and _has_version(state, member, evaluation):
            grants.append(_grant(state, member, evaluation, room, now))
            room -= len(grants[-1].slots)
    if not grants:
        return []
    state.members.set_free_slots(member, max(0, member.free_slots - sum(len(one.slots) for one in grants)))
    if not book.has_open():  # those that evaluate may have other work again
        state.members.changed(book.peers)
    return [SendLeases(member.peer_id, tuple(grants))]


def _may_evaluate(state: CoreState, member: Member, now: float) -> bool:
    """Whether the member may hold samples: it evaluates already, or there is room for one more that does."""
    book = state.evaluations
    if member.is_cell or not member.may_work or member.reputation.resting or now < member.reputation.evaluates_from:
        return False
    if member.peer_id in book.peers or book.keeps_version(member.peer_id):
        return True
    if member.free_slots <= 0 or not book.peers:
        return member.free_slots > 0
    evaluating = [one for peer_id in book.peers if (one := state.members.get(peer_id)) is not None]
    slots = sum(one.concurrent_rollouts for one in evaluating) + member.concurrent_rollouts
    return slots <= _share(state) * book.fleet_slots


def _share(state: CoreState) -> float:
    """Return the share of the fleet's slots that evaluations may have: all of them once every batch was formed."""
    is_last = state.last_step is not None or state.batches.next_step >= state.settings.steps
    return 1.0 if is_last else state.settings.evaluation_share


def _has_version(state: CoreState, member: Member, evaluation: Evaluation) -> bool:
    """Whether the member generates with this version, or is about to; one that evaluates it keeps it."""
    version = evaluation.request.key.version
    if version == member.version or (member.facts is not None and version == member.facts.active_version):
        return True
    if member.peer_id in evaluation.newest_leases:
        return True
    return any(one.evaluation.version == version for one in state.evaluations.held_by(member.peer_id))


def _grant(state: CoreState, member: Member, evaluation: Evaluation, room: int, now: float) -> LeaseGrant:
    request = evaluation.request
    samples, lease = evaluation.take(room), state.book.next_lease()
    load, new_tokens_max = max(member.concurrent_rollouts, len(samples)), state.settings.sampling.max_new_tokens
    deadline_s = state.lease_deadline_s(member.peer_id, load, new_tokens_max)
    state.evaluations.issue(evaluation, samples, member.peer_id, lease, state.lease_clock.at(now) + deadline_s)
    number = samples[0][0]
    problem = request.problems[number]
    if problem.has_environment:
        evaluation.newest_leases[member.peer_id] = lease[0]
    return LeaseGrant(
        lease_id=lease[0],
        fencing_token=lease[1],
        group_id=_NO_GROUP,
        prompt_token_ids=problem.prompt_token_ids,
        slots=tuple(
            Slot(
                one[1],
                evaluation_seed(request.key.seed, number, one[1]),
                evaluation.answered.get(one, NO_TURNS).segments,
            )
            for one in samples
        ),
        sampling=state.settings.sampling,
        deadline_s=deadline_s,
        epoch=evaluation.epoch,
        oldest_useful_version=request.key.version,
        kind="evaluation",
        keep_version_s=KEEP_VERSION_S if problem.has_environment else 0.0,
    )


def returned(state: CoreState, peer_id: PeerId, lease_ids: Iterable[LeaseId], now: float) -> None:
    """Open the samples of leases that a peer will not work on; it gets no other for a moment."""
    named = frozenset(lease_ids)
    given_back = [one for one in state.evaluations.held_by(peer_id) if one.lease_id in named]
    _close(state, given_back)
    for attempt in given_back:  # whatever version it kept: it may have swapped meanwhile, or been started again
        _evaluation_of(state, attempt).newest_leases.pop(peer_id, None)
    if given_back:
        state.members.reputation(peer_id).evaluates_from = now + RETURN_REST_S


def joined(state: CoreState, peer_id: PeerId, held_leases: Iterable[LeaseId] | None) -> None:
    """Return its attempts to a peer that reconnected, except those of leases that it reports as lost."""
    state.evaluations.reconnected(peer_id)
    if held_leases is not None:
        has = frozenset(held_leases)
        _close(state, [one for one in state.evaluations.held_by(peer_id) if one.lease_id not in has])


def left(state: CoreState, peer_id: PeerId, *, finished: bool) -> None:
    """Open the samples of a peer whose session ended; unless it is ``finished`` its rollouts still count."""
    if finished:
        _close(state, state.evaluations.held_by(peer_id))
    else:
        state.evaluations.left(peer_id)


def dismissed(state: CoreState, peer_id: PeerId) -> list[Action]:
    """Take its leases away from a peer that may not take part any more."""
    attempts = state.evaluations.held_by(peer_id)
    _close(state, attempts)
    return state.evaluations.revocations(attempts, "revoked")


def _close(state: CoreState, attempts: Iterable[EvaluationAttempt]) -> None:
    for attempt in attempts:
        state.evaluations.close(attempt)


# ---------------------------------------------------------------- rollouts


def received(state: CoreState, event: RolloutReceived, now: float) -> list[Action]:
    """Check a rollout of an evaluation, and have it scored. It is not stored: see coordinator.core.leases."""
    rollout, book = event.rollout, state.evaluations
    attempt = book.live_attempt((rollout.lease_id, rollout.sample_index))
    if attempt is None:
        known = book.accepted_from((rollout.lease_id, rollout.sample_index)) == event.peer_id
        return [_answer(event)] if known else [_refuse(state, event, "fenced")]
    if attempt.peer_id != event.peer_id or attempt.fencing_token != rollout.fencing_token:
        what = "uploaded under another peer's lease, or with a wrong fencing token"
        return [Penalise(event.peer_id, what, False), _refuse(state, event, "fenced")]
    if state.book.unscored + book.unscored >= state.settings.scoring_queue_max:
        return [_refuse(state, event, "busy")]
    if rollout.finish_reason == "interrupted":
        book.close(attempt)
        return [_answer(event, "returned")]
    before = _turns_before(state, attempt)
    malformed = _malformed(state, event, attempt, before.segments)
    if malformed:
        book.close(attempt)
        return [Penalise(event.peer_id, malformed, False), _refuse(state, event, "malformed")]
    accepted, member = _accept(state, event, attempt, before), state.members.get(event.peer_id)
    return accepted if member is None else accepted + give(state, member, now)


def turn_so_far(state: CoreState, rollout: Rollout) -> bytes | None:
    """Return the packed token ids of an upload since an environment last answered; None if it is of no evaluation."""
    attempt = state.evaluations.live_attempt((rollout.lease_id, rollout.sample_index))
    if attempt is None:
        return None
    before = _turns_before(state, attempt).segments if rollout.prefix_digest else ()
    return packed_turn((*before, *rollout.segments))


def _turns_before(state: CoreState, attempt: EvaluationAttempt) -> Turns:
    return _evaluation_of(state, attempt).answered.get(attempt.sample, NO_TURNS)


def _evaluation_of(state: CoreState, attempt: EvaluationAttempt) -> Evaluation:
    evaluation = state.evaluations.get(attempt.evaluation)
    if evaluation is None:
        raise ValueError(f"an attempt at {attempt.evaluation} is in flight, which is not remembered")
    return evaluation


def _malformed(state: CoreState, event: RolloutReceived, attempt: EvaluationAttempt, before: Prefix) -> str:
    segments = whole_of(event.rollout, before)
    if segments is None:
        return "uploaded a turn that does not follow on the prefix of its lease"
    wrong = {segment.version for segment in segments[len(before) :]} - {attempt.evaluation.version}
    if wrong:
        return f"uploaded an evaluation of version {attempt.evaluation.version} that version {min(wrong)} generated"
    return malformed_rollout(state, event.peer_id, replace(event.rollout, segments=segments), before, event.text_end)


def _accept(state: CoreState, event: RolloutReceived, attempt: EvaluationAttempt, before: Turns) -> list[Action]:
    evaluation, rollout = _evaluation_of(state, attempt), event.rollout
    whole, turns = rollout, before.said(rollout.segments, body_of(rollout))
    if before.segments:  # the message has only what follows on them
        whole = with_body(replace(rollout, segments=turns.segments, prefix_digest=b""), turns.parts)
    others = state.evaluations.accept(attempt, turns)
    reputation = state.members.reputation(event.peer_id)
    reputation.accepted += 1
    problem, sample_index = attempt.sample
    prompt = evaluation.request.problems[problem].prompt_token_ids
    seed = evaluation_seed(evaluation.request.key.seed, problem, sample_index)
    rollout_id = RolloutId(attempt.lease_id << _SAMPLE_BITS | sample_index % (1 << _SAMPLE_BITS))
    version = attempt.evaluation.version
    state.offer_for_audit(Unseen(rollout_id, event.peer_id, version, (prompt, seed, whole)))
    score = ScoreEvaluation(
        attempt.evaluation,
        problem,
        sample_index,
        evaluation.request.problems[problem].example_id,
        whole.completion_token_ids,
        turns.lengths,
        keep=problem < KEPT_PROBLEMS,
    )
    return [_answer(event), *state.evaluations.revocations(others, "late_duplicate"), score]


def malformed(state: CoreState, event: MalformedRollout) -> list[Action]:
    """Close the attempt of an upload that cannot be parsed, if it is its sender's."""
    answer = AnswerUpload(event.upload_id, event.lease_id, event.sample_index, False, "malformed")
    attempt = state.evaluations.live_attempt((event.lease_id, event.sample_index))
    state.accounts.uploads_refused["malformed"] += 1
    if attempt is None or (attempt.peer_id, attempt.fencing_token) != (event.peer_id, event.fencing_token):
        return [answer]
    state.evaluations.close(attempt)
    return [Penalise(event.peer_id, f"uploaded a malformed rollout: {event.problem}", False), answer]


def scored(state: CoreState, event: EvaluationScored, now: float) -> list[Action]:
    """Add a score; the last one completes its evaluation."""
    sample = (event.problem, event.sample_index)
    evaluation = state.evaluations.score(event.key, sample, event.reward, exact=event.exact)
    if evaluation is None:
        return []
    detail = f"{sum(evaluation.exact)} of {evaluation.samples} completions of {event.key.set_name} are right"
    return [*_end(state, evaluation, now), Note("evaluation_done", _name(event.key), detail)]


def answered(state: CoreState, event: EvaluationAnswered, now: float) -> list[Action]:
    """Have the next turn of a sample generated, by a peer that has the version."""
    book = state.evaluations
    evaluation = book.get(event.key)
    if evaluation is None or not book.answer(event.key, (event.problem, event.sample_index), event.answer):
        return []
    state.members.changed(book.peers)  # those that evaluate have no other work while samples wait
    candidates = [found for peer_id in evaluation.newest_leases if (found := state.members.get(peer_id)) is not None]
    return [action for member in candidates for action in give(state, member, now)]


def unscorable(state: CoreState, event: EvaluationUnscorable, now: float) -> list[Action]:
    """Give an evaluation up that lacks a score: its figures would be those of other completions."""
    evaluation = state.evaluations.get(event.key)
    if evaluation is None or evaluation not in state.evaluations.under_way():
        return []
    return _give_up(state, evaluation, f"a completion could not be scored: {event.why}", now)


def _answer(event: RolloutReceived, reason: str = "") -> AnswerUpload:
    return AnswerUpload(event.upload_id, event.rollout.lease_id, event.rollout.sample_index, not reason, reason)


def _refuse(state: CoreState, event: RolloutReceived, reason: RefusalReason) -> AnswerUpload:
    state.accounts.uploads_refused[reason] += 1
    return _answer(event, reason)


def _name(key: EvaluationKey) -> str:
    return f"version {key.version}"
