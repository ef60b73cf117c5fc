"""Keep the evaluations that were asked for: samples open, in flight at peers, being scored, and their scores.

    sample: open ──► in flight, by at most two attempts ──► received ──► scored
              ▲──────────────┘ expired, returned, or its peer is away
              ▲──────────────────────────────────────────────┘ its environment answered: the next turn follows

Nothing of this is in the ledger, because nothing that is trained on depends on it: after a restart of the coordinator
the learner asks again, and rollouts under the leases of before are refused.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Set
from dataclasses import dataclass, field

from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationRequested
from coordinator.core.leases.attempts import AttemptKey
from coordinator.core.leases.groups import LIVE_ATTEMPTS_MAX
from coordinator.core.leases.in_flight import InFlight
from rollcast.wire.ids import Epoch, FencingToken, LeaseId, PeerId
from rollcast.wire.rollouts import Segment

UNDER_WAY_MAX = 16
"""Evaluations at a time."""
SAMPLES_MAX = 1 << 18
"""Samples of one evaluation."""
ENDED_KEPT = 64
"""Evaluations whose scores are kept, the newest ones."""
GIVEN_UP_KEPT_S = 60.0
"""Seconds for which an evaluation that was given up is remembered, so that whoever asked for it sees why."""

Sample = tuple[int, int]  # index of its problem, and its own index among the problem's samples


@dataclass(frozen=True, slots=True)
class EvaluationAttempt:
    """One sample leased to one peer; ``deadline`` is on the clock of leases, in seconds."""

    evaluation: EvaluationKey
    sample: Sample
    lease_id: LeaseId
    fencing_token: FencingToken
    peer_id: PeerId
    deadline: float
    key: AttemptKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.lease_id, self.sample[1]))


@dataclass(frozen=True, slots=True)
class Turns:
    """What was said in a sample so far: segments in order, and the messages that they came in.

    ``lengths``: of turn, answer, turn, ..., in tokens.
    """

    segments: tuple[Segment, ...] = ()
    lengths: tuple[int, ...] = ()
    parts: tuple[Segment | bytes, ...] = field(default=(), repr=False)

    def said(self, turn: tuple[Segment, ...], body: bytes) -> Turns:
        """Return these turns and one more, which was uploaded in ``body``."""
        tokens = sum(one.token_count for one in turn)
        return Turns((*self.segments, *turn), (*self.lengths, tokens), (*self.parts, body))

    def answered(self, answer: Segment) -> Turns:
        """Return these turns and what the environment answered."""
        return Turns((*self.segments, answer), (*self.lengths, answer.token_count), (*self.parts, answer))


NO_TURNS = Turns()


@dataclass(slots=True)
class Evaluation:
    """One evaluation. Times are the core's clock, in seconds."""

    request: EvaluationRequested
    epoch: Epoch  # of its version
    deadline: float
    exact: list[int]  # right completions of each problem
    rewards: list[float]  # sum of each problem's rewards
    open: deque[Sample] = field(default_factory=deque)
    live: dict[Sample, list[EvaluationAttempt]] = field(default_factory=dict)
    unscored: dict[Sample, Turns] = field(default_factory=dict)
    answered: dict[Sample, Turns] = field(default_factory=dict)  # with which the sample's next turn begins
    newest_leases: dict[PeerId, LeaseId] = field(default_factory=dict)  # after which the peer keeps the version
    scored: int = 0
    hopeless_since: float | None = None  # since when no member could ever generate its version
    ended_at: float | None = None
    given_up: str = ""  # why; empty if it is under way or done

    @property
    def samples(self) -> int:
        """Number of all its samples."""
        return len(self.request.problems) * self.request.key.samples

    @property
    def done(self) -> bool:
        """Whether every sample is scored."""
        return self.ended_at is not None and not self.given_up

    def take(self, room: int) -> list[Sample]:
        """Take up to ``room`` open samples of one problem, which become one lease."""
        taken = [self.open.popleft()]
        while self.open and self.open[0][0] == taken[0][0] and len(taken) < room:
            taken.append(self.open.popleft())
        return taken


class EvaluationBook(InFlight[EvaluationAttempt]):
    """Keeps every evaluation that is under way, and the newest that ended.

    Args:
        accepted_kept: most rollouts that are remembered as accepted, so that a repeated upload gets the same answer.
    """

    def __init__(self, accepted_kept: int) -> None:
        super().__init__()
        self._accepted_kept = accepted_kept
        self._evaluations: OrderedDict[EvaluationKey, Evaluation] = OrderedDict()
        self._under_way: dict[EvaluationKey, Evaluation] = {}
        self._away: set[AttemptKey] = set()  # live attempts of peers without a session
        self._accepted: OrderedDict[AttemptKey, PeerId] = OrderedDict()
        self.fleet_slots = 0
        """The rollouts that all members together generate at once, as last counted."""

    # ---------------------------------------------------------------- questions

    def get(self, key: EvaluationKey) -> Evaluation | None:
        """Return an evaluation; None if it was never asked for, or is not remembered."""
        return self._evaluations.get(key)

    def under_way(self) -> list[Evaluation]:
        """Return the evaluations that have not ended, in the order in which they were asked for."""
        return list(self._under_way.values())

    def has_open(self) -> bool:
        """Whether a sample waits for a peer."""
        return any(one.open for one in self._under_way.values())

    @property
    def unscored(self) -> int:
        """Number of samples that are received and not scored."""
        return sum(len(one.unscored) for one in self._under_way.values())

    def keeps_version(self, peer_id: PeerId) -> bool:
        """Whether the peer keeps a version for the next turns of samples that it had."""
        return any(peer_id in one.newest_leases for one in self._under_way.values())

    def occupies(self, peer_id: PeerId) -> bool:
        """Whether the peer works for evaluations alone: it holds a sample, and others wait."""
        return peer_id in self._live_by_peer and self.has_open()

    @property
    def peers(self) -> Set[PeerId]:
        """The peers that hold an attempt."""
        return self._live_by_peer.keys()

    def concerns(self, key: AttemptKey) -> bool:
        """Return whether an upload under this attempt belongs to an evaluation."""
        return key in self._live or key in self._accepted

    def accepted_from(self, key: AttemptKey) -> PeerId | None:
        """Return the peer whose rollout under this attempt was accepted; None if none was, or it is forgotten."""
        return self._accepted.get(key)

    # ---------------------------------------------------------------- evaluations

    def begin(self, request: EvaluationRequested, epoch: Epoch, now: float) -> Evaluation:
        """Add an evaluation with every sample open."""
        count = len(request.problems)
        made = Evaluation(request, epoch, now + request.deadline_s, [0] * count, [0.0] * count)
        made.open.extend((problem, sample) for problem in range(count) for sample in range(request.key.samples))
        self._evaluations[request.key] = self._under_way[request.key] = made
        return made

    def end(self, evaluation: Evaluation, now: float, given_up: str = "") -> list[EvaluationAttempt]:
        """End an evaluation and return its attempts that were in flight. ``given_up``: why it has no scores."""
        del self._under_way[evaluation.request.key]
        closed = [attempt for attempts in evaluation.live.values() for attempt in attempts]
        for attempt in closed:
            self._end_live(attempt)
        evaluation.ended_at, evaluation.given_up = now, given_up
        evaluation.open.clear()
        evaluation.live.clear()
        evaluation.unscored.clear()
        evaluation.answered.clear()
        evaluation.newest_leases.clear()
        self._evaluations.move_to_end(evaluation.request.key)
        ended = [key for key in self._evaluations if key not in self._under_way]
        for key in ended[:-ENDED_KEPT]:
            del self._evaluations[key]
        return closed

    def forget(self, now: float) -> None:
        """Forget evaluations that were given up a while ago: they may be asked for again."""
        for key, one in list(self._evaluations.items()):
            if one.given_up and one.ended_at is not None and now - one.ended_at >= GIVEN_UP_KEPT_S:
                del self._evaluations[key]

    # ---------------------------------------------------------------- attempts

    def issue(
        self,
        evaluation: Evaluation,
        samples: Iterable[Sample],
        peer_id: PeerId,
        lease: tuple[LeaseId, FencingToken],
        deadline: float,
    ) -> None:
        """Lease these samples of one problem, which ``Evaluation.take`` returned, to a peer."""
        for sample in samples:
            attempt = EvaluationAttempt(evaluation.request.key, sample, *lease, peer_id, deadline)
            evaluation.live.setdefault(sample, []).append(attempt)
            self._begin_live(attempt)

    def close(self, attempt: EvaluationAttempt) -> None:
        """End an attempt without a rollout; its sample is open again unless another attempt at it is in flight."""
        evaluation = self._under_way[attempt.evaluation]
        self._end_live(attempt)
        evaluation.live[attempt.sample].remove(attempt)
        self._reopen(evaluation, attempt.sample)
        if not evaluation.live[attempt.sample]:
            del evaluation.live[attempt.sample]

    def left(self, peer_id: PeerId) -> None:
        """Note that a peer has no session: its samples are open to others, and the first rollout of each counts."""
        for attempt in self.held_by(peer_id):
            self._away.add(attempt.key)
            self._reopen(self._under_way[attempt.evaluation], attempt.sample)

    def reconnected(self, peer_id: PeerId) -> None:
        """Note that a peer is back, with the attempts that it had."""
        for attempt in self.held_by(peer_id):
            self._away.discard(attempt.key)
            evaluation = self._under_way[attempt.evaluation]
            if attempt.sample in evaluation.open:
                evaluation.open.remove(attempt.sample)

    def _reopen(self, evaluation: Evaluation, sample: Sample) -> None:
        attempts = evaluation.live[sample]
        at_work = any(attempt.key not in self._away for attempt in attempts)
        if not at_work and len(attempts) < LIVE_ATTEMPTS_MAX and sample not in evaluation.open:
            evaluation.open.appendleft(sample)

    def accept(self, attempt: EvaluationAttempt, turns: Turns) -> list[EvaluationAttempt]:
        """Note that an attempt's rollout was received. Returns the other attempts at the sample, which are over.

        ``turns``: all of the sample so far.
        """
        evaluation = self._under_way[attempt.evaluation]
        attempts = evaluation.live.pop(attempt.sample)
        if any(one.key in self._away for one in attempts) and attempt.sample in evaluation.open:
            evaluation.open.remove(attempt.sample)
        for one in attempts:
            self._end_live(one)
        evaluation.unscored[attempt.sample] = turns
        self._accepted[attempt.key] = attempt.peer_id
        while len(self._accepted) > self._accepted_kept:
            self._accepted.popitem(last=False)
        return [one for one in attempts if one is not attempt]

    def answer(self, key: EvaluationKey, sample: Sample, answer: Segment) -> bool:
        """Open a sample for its next turn, before others. Returns whether it waited for the answer."""
        evaluation = self._under_way.get(key)
        turns = None if evaluation is None else evaluation.unscored.pop(sample, None)
        if evaluation is None or turns is None:
            return False
        evaluation.answered[sample] = turns.answered(answer)
        evaluation.open.appendleft(sample)
        return True

    def score(self, key: EvaluationKey, sample: Sample, reward: float, *, exact: bool) -> Evaluation | None:
        """Add a sample's score. Returns the evaluation if that was its last sample."""
        evaluation = self._under_way.get(key)
        if evaluation is None or sample not in evaluation.unscored:
            return None
        del evaluation.unscored[sample]
        evaluation.answered.pop(sample, None)
        evaluation.scored += 1
        evaluation.exact[sample[0]] += exact
        evaluation.rewards[sample[0]] += reward
        return evaluation if evaluation.scored == evaluation.samples else None

    def _end_live(self, attempt: EvaluationAttempt) -> None:
        super()._end_live(attempt)
        self._away.discard(attempt.key)

    # ---------------------------------------------------------------- invariants

    def validate(self) -> None:
        """Raise AssertionError when an index disagrees with the evaluations, or a bound is broken."""
        live: set[AttemptKey] = set()
        for one in self._under_way.values():
            attempts = [attempt for found in one.live.values() for attempt in found]
            live |= {attempt.key for attempt in attempts}
            assert len(set(one.open)) == len(one.open), "a sample is open twice"
            _validate_samples(one, self._away)
        self._validate_live(live)
        assert self._away <= live, "evaluations: attempts of peers that are away"
        assert len(self._under_way) <= UNDER_WAY_MAX, "too many evaluations"
        assert len(self._evaluations) <= UNDER_WAY_MAX + ENDED_KEPT, "evaluations are not bounded"


def _validate_samples(one: Evaluation, away: Container[AttemptKey]) -> None:
    at_work = {sample for sample, found in one.live.items() if any(attempt.key not in away for attempt in found)}
    assert all(1 <= len(found) <= LIVE_ATTEMPTS_MAX for found in one.live.values()), "attempts at a sample"
    assert at_work.isdisjoint(one.open), "a sample in flight is open"
    assert one.unscored.keys().isdisjoint(one.open), "a received sample is open"
    assert one.unscored.keys().isdisjoint(one.live), "a received sample is in flight"
    placed = {*one.open, *one.live, *one.unscored}
    assert len(placed) + one.scored == one.samples, "a sample is lost"
