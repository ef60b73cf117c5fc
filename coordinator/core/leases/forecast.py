"""Estimate how long attempts, scoring and the learner's steps will take, from how long they took.

A peer's speed is the median of tokens x load / turnaround over its newest attempts. The load is the slots that it held
when the attempt was issued, or those that it generates at once if they are more. Speeds are of tokens, because a peer
that is given less work for a while ends its long rollouts last: in slots it would seem slow, be given still less, and
never be measured again. A speed in slots is that speed over the usual length, the median of all peers' rollouts. How
far single attempts depart from their peer's speed is one distribution for all peers: lengths vary far more than
machines do. All times are the core's clock in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from capacity.model.pacing_rules import LAGS_WINDOW, PERIODS, SPEED_WINDOW, SPREAD_NEEDED, SPREAD_WINDOW, Caution
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.episodes import Game
from rollcast.runtime.windows import WINDOW, RecentIdentities, percentile_of
from rollcast.wire.ids import PeerId, Version
from rollcast.wire.rollouts import last_turn, tokens_of

_SPREAD_SORTED_EVERY = 32  # measurements between two sortings
_LAGS_SORTED_EVERY = 16  # versions that reached peers
_LENGTHS_SORTED_EVERY = 64  # rollouts
LENGTHS_NEEDED = 64  # rollouts measured before their lengths are described by quantiles
EPISODES_NEEDED = 16  # measured, before their times replace those that follow from turns
_TURNS_WEIGHT = 0.1  # of the newest episode in the moving mean of turns
_DISCARD_AFTER_S = 3600.0  # a speed this old is discarded, so that a peer that was too slow may retry


class _Sorted:
    """Keeps the newest measurements of one quantity, and sorts them again after every few new ones."""

    def __init__(self, size: int, sorted_every: int) -> None:
        self._values: deque[float] = deque()
        self._size = size
        self._sorted: list[float] = []
        self._every = sorted_every
        self._unsorted = 0  # number of newest measurements that are not among the sorted ones
        self._quantiles: dict[float, float] = {}  # cached since the last sorting

    def __len__(self) -> int:
        return min(len(self._values), self._size)

    def add(self, value: float) -> None:
        self._values.append(value)
        self._unsorted += 1
        if self._unsorted == self._every or len(self._values) <= self._every:
            self._sort()

    def _sort(self) -> None:
        """Remove the oldest measurements one by one, then merge the few new ones into the rest, which is sorted."""
        while len(self._values) > self._size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._sorted += islice(reversed(self._values), self._unsorted)
        self._sorted.sort()
        self._unsorted = 0
        self._quantiles.clear()

    def quantile(self, share: float) -> float | None:
        """Return the nearest-rank quantile; None without a measurement."""
        known = self._quantiles.get(share)
        if known is None and self._sorted:
            rank = min(len(self._sorted), max(1, math.ceil(share * len(self._sorted))))
            known = self._quantiles[share] = self._sorted[rank - 1]
        return known

    def median_above(self, value: float) -> float | None:
        """Return the median of the measurements above ``value``; None if there is none."""
        first = bisect_left(self._sorted, value)
        return self._sorted[(first + len(self._sorted)) // 2] if first < len(self._sorted) else None


class _Speed:
    """Speed of one peer in tokens per second; 0 before the first measurement."""

    __slots__ = ("_samples", "is_bound", "measured_at", "tokens_per_s")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SPEED_WINDOW)
        self.tokens_per_s = 0.0
        self.measured_at = 0.0
        self.is_bound = True
        """Whether no rollout was measured, only attempts that ended without one."""

    @property
    def is_settled(self) -> bool:
        """Whether the median is over as many attempts as it will ever be."""
        return len(self._samples) == SPEED_WINDOW

    def add(self, tokens_per_s: float, now: float) -> None:
        """Add a rollout's speed."""
        if self.is_bound:
            self._samples.clear()
            self.is_bound = False
        self._add(tokens_per_s, now)

    def bound(self, tokens_per_s: float, now: float) -> None:
        """Add the speed that an attempt without a rollout did not exceed; the first rollout replaces it."""
        if self.is_bound:
            self._add(tokens_per_s, now)

    def _add(self, tokens_per_s: float, now: float) -> None:
        self._samples.append(tokens_per_s)
        self.tokens_per_s = sorted(self._samples)[len(self._samples) // 2]
        self.measured_at = now


@dataclass(frozen=True, slots=True)
class Outlook:
    """How long a number of slots takes, by the measurements of one moment; the same for all peers but for their speed.

    None stands for what was not measured. Durations are in seconds.
    """

    turns: float
    spread: float | None
    answers_s: float
    scoring_s: float
    typical_s: float | None  # of a peer whose own speed was not measured
    next_in_s: float  # seconds until the next batch is wanted
    period_s: float | None  # of the learner's steps

    def ready_in_s(self, typical_s: float | None) -> float | None:
        """Return the seconds until the slots are scored; None before enough is measured.

        ``typical_s``: median seconds of one attempt of the peer that they are given to.
        """
        if typical_s is None or self.spread is None:
            return None
        return self.turns * typical_s * (self.spread or 1.0) + self.answers_s + self.scoring_s

    def steps(self, load: int, slots_per_s: float | None) -> int:
        """Return the batches that are formed before they are scored, by a peer of this load and speed."""
        ready_in_s = self.ready_in_s(load / slots_per_s if slots_per_s else self.typical_s)
        if ready_in_s is None or not self.period_s:
            return 0
        return max(0, math.ceil((ready_in_s - self.next_in_s) / self.period_s))


class Forecast:
    """Keeps measured durations, and makes the predictions that follow from them."""

    def __init__(self) -> None:
        self._speeds: RecentIdentities[PeerId, _Speed] = RecentIdentities()
        self._spread = _Sorted(SPREAD_WINDOW, _SPREAD_SORTED_EVERY)  # turnaround / turnaround expected from the speed
        self._turnaround_s = _Sorted(SPREAD_WINDOW, _SPREAD_SORTED_EVERY)
        self._scoring_s = _Sorted(256, 16)
        self._length_tokens = _Sorted(SPREAD_WINDOW, _LENGTHS_SORTED_EVERY)
        self._lag_steps = _Sorted(LAGS_WINDOW, _LAGS_SORTED_EVERY)
        self._periods: deque[float] = deque(maxlen=PERIODS)
        self._busy: deque[float] = deque(maxlen=PERIODS)
        self._recorded = -1
        self._recorded_at: float | None = None
        self._asked_at: float | None = None
        self._generate_s: deque[float] = deque(maxlen=WINDOW)
        self.step_period_s: float | None = None  # median from one recorded batch to the next
        self.learner_s: float | None = None  # median of the seconds of it without waiting for a batch
        self._ended = (0, 0)
        self.caution = Caution()
        self._environment_s = _Sorted(256, 16)  # from a question to the answer
        self._episode_s = _Sorted(256, 16)  # from the first turn's lease to the end of the game
        self.turns = 1.0
        """Generations that a rollout takes, one after the other, with those of other agents: a moving mean, 1 without
        episodes."""
        self.own_turns = 1.0
        """Generations of its own that a rollout takes: a moving mean over episodes, 1 without any."""

    # ---------------------------------------------------------------- measurements

    def joined(self, members: int) -> None:
        """Remember the speeds of this many members, and of as many that left and may come back."""
        self._speeds.make_room(members)

    def answered(self, attempt: Attempt, now: float, tokens: int, generate_s: float = 0.0) -> None:
        """Measure an attempt whose rollout was received. Its peer reports that it generated for ``generate_s``.

        Args:
            tokens: length of the completion, or of the turn of an episode, with the part of it that the peer was given
                to continue.
        """
        self._length_tokens.add(float(tokens))
        if not attempt.load:
            return  # an earlier coordinator issued it, at a time that is not known
        # A peer may report anything, but it cannot have generated for longer than it held the attempt.
        self._generate_s.append(min(generate_s, now - attempt.issued_at))
        turnaround_s = max(now - attempt.issued_at, 1e-6)
        speed = self._speed(attempt.peer_id)
        if not speed.is_bound:
            self._spread.add(turnaround_s * speed.tokens_per_s / (attempt.load * self._usual_tokens))
        given = tokens_of(last_turn(attempt.prefix or ()))
        speed.add(max(1, tokens - given) * attempt.load / turnaround_s, now)
        self._turnaround_s.add(turnaround_s)

    def gave_up(self, attempt: Attempt, now: float) -> None:
        """Measure an attempt that ended without a rollout: it would have taken at least as long.

        Its length is not known. Of a peer that has delivered rollouts it says nothing, because long ones end this way;
        a peer that never delivers one is taken to be as slow as if they had the usual length.
        """
        so_far_s = now - attempt.issued_at
        typical_s = self.typical_s(attempt.peer_id, attempt.load, now)
        if attempt.load and typical_s is not None and so_far_s > typical_s:
            self._speed(attempt.peer_id).bound(attempt.load * self._usual_tokens / so_far_s, now)

    def _speed(self, peer_id: PeerId) -> _Speed:
        return self._speeds.used(peer_id, _Speed)

    def scored(self, seconds: float) -> None:
        """Measure how many seconds after its receipt a rollout was scored."""
        self._scoring_s.add(seconds)

    def environment_answered(self, seconds: float) -> None:
        """Measure how many seconds an environment took to answer."""
        self._environment_s.add(seconds)

    def episode_ended(self, turns: int, agents: int = 1, seconds: float | None = None) -> None:
        """Measure the turns of all agents of a game, and its seconds; None: an earlier coordinator began it."""
        weight = _TURNS_WEIGHT if self.turns > 1.0 else 1.0
        self.turns += (turns - self.turns) * weight
        self.own_turns += (turns / agents - self.own_turns) * weight
        if seconds is not None:
            self._episode_s.add(seconds)

    def version_came(self, version: Version, now: float) -> None:
        """Measure how old a version is when a peer that had an older one holds it."""
        if self._recorded_at is None or not self.step_period_s or version >= self._recorded:
            return
        behind = self._recorded - 1 - version  # the newest batch is of the step that begins with this many completed
        self._lag_steps.add(behind + min(1.0, (now - self._recorded_at) / self.step_period_s))

    def learner(self, now: float, *, recorded: int, waits: bool, trained: int = 0, stale: int = 0) -> None:
        """Measure the learner's steps; called when a batch was requested or recorded.

        Args:
            recorded: batches recorded so far.
            waits: whether the learner waits for a batch.
            trained: rollouts trained since the start.
            stale: rollouts dropped for their age since the start.
        """
        if waits and self._asked_at is None:
            self._asked_at = now
            self._was_busy(now)
        if recorded == self._recorded:
            return
        if self._asked_at is None:
            self._was_busy(now)  # it was served at once
        if self._recorded_at is not None:
            self._periods.append(now - self._recorded_at)
            self.step_period_s = percentile_of(self._periods, 50)
            self._learn_caution(now, trained - self._ended[0], stale - self._ended[1])
        self._ended = (trained, stale)
        self._recorded, self._recorded_at = recorded, now
        self._asked_at = now if waits else None

    def _was_busy(self, now: float) -> None:
        """Measure the learner's own time: until it requested this batch it worked on the previous one."""
        if self._recorded_at is not None:
            self._busy.append(now - self._recorded_at)
            self.learner_s = percentile_of(self._busy, 50)

    def _learn_caution(self, now: float, trained: int, stale: int) -> None:
        """Adjust the caution after a step, on the assumption that a waiting learner costs more than wasted work."""
        waited_s = 0.0 if self._asked_at is None else now - self._asked_at
        waited_share = waited_s / max(self._periods[-1], 1e-9)
        self.caution.learn(waited_share, trained, stale, beginning=len(self._periods) < PERIODS)

    # ---------------------------------------------------------------- questions

    def generate_p90_s(self) -> float | None:
        """Return the 90th percentile of the seconds that rollouts took to generate; None before the first one.

        An episode counts whole, with the answers of its environment: so long the versions of its first turn grow older.
        """
        return self._episode_s.quantile(0.9) or percentile_of(self._generate_s, 90)

    @property
    def _usual_tokens(self) -> float:
        """Median length of a rollout in tokens; 1 before the first one."""
        return self._length_tokens.quantile(0.5) or 1.0

    @property
    def steps_timed(self) -> int:
        """Number of learner steps from which its pace was measured."""
        return len(self._periods)

    def slots_per_s(self, peer_id: PeerId, now: float) -> float | None:
        """Return the peer's speed in slots of the usual length per second; None if it was not measured lately."""
        speed = self._speeds.get(peer_id)
        if speed is None or now - speed.measured_at > _DISCARD_AFTER_S:
            return None
        return speed.tokens_per_s / self._usual_tokens

    def is_settled(self, peer_id: PeerId) -> bool:
        """Whether the peer's speed is the median of enough attempts; its first ones include its startup."""
        speed = self._speeds.get(peer_id)
        return speed is not None and speed.is_settled

    def typical_s(self, peer_id: PeerId, load: int, now: float) -> float | None:
        """Return the median seconds from issue to receipt of this peer's attempts; of all peers if it was not measured.

        None before anything was measured.
        """
        per_s = self.slots_per_s(peer_id, now)
        return load / per_s if per_s else self.typical_s_of_all

    def longest_s(self, peer_id: PeerId, load: int, new_tokens_max: int, now: float) -> float | None:
        """Return the seconds that this peer's attempts take at the greatest length; None before anything was measured.

        Args:
            load: the slots that it holds, or those that it generates at once if they are more.
        """
        typical_s = self.typical_s(peer_id, load, now)
        return None if typical_s is None else typical_s * max(1.0, new_tokens_max / self._usual_tokens)

    @property
    def typical_s_of_all(self) -> float | None:
        """Median seconds from issue to receipt of all peers' attempts; None before anything was measured."""
        return self._turnaround_s.quantile(0.5)

    def turns_left(self, games: Sequence[Game]) -> float:
        """Return the generations that the slowest of a group's games still takes; 1 if it has none."""
        if not games:
            return 1.0
        return max(1.0, self.turns - min(one.turn_count for one in games))

    def outlook(self, slots: int, chance: float, turns: float, now: float) -> Outlook:
        """Return how long it takes until so many slots are scored, with this chance.

        ``turns``: generations that each takes, one after the other, with an answer of its environment in between.
        """
        is_measured = len(self._spread) >= SPREAD_NEEDED
        return Outlook(
            turns=turns,
            spread=self._spread.quantile(chance ** (1.0 / max(1, slots))) if is_measured else None,
            answers_s=turns * (self._environment_s.quantile(0.9) or 0.0),
            scoring_s=self._scoring_s.quantile(0.9) or 0.0,
            typical_s=self.typical_s_of_all,
            next_in_s=self.next_in_s(now),
            period_s=None if self._recorded_at is None else self.step_period_s,
        )

    def length_quantiles(self, count: int) -> tuple[float, ...]:
        """Return the lengths of rollouts at the middles of so many equal shares, in tokens; empty if not measured.

        Rollouts that a lost peer did not finish are missing, as are those in flight: a few of the longest at the start.
        """
        if len(self._length_tokens) < LENGTHS_NEEDED:
            return ()
        found = [self._length_tokens.quantile((place + 0.5) / count) for place in range(count)]
        return tuple(max(1.0, tokens or 0.0) for tokens in found)

    def scoring_s(self, share: float) -> float | None:
        """Return the seconds from a rollout's receipt to its score, at this quantile; None if not measured."""
        return self._scoring_s.quantile(share)

    def learner_starves(self, now: float) -> bool:
        """Whether the learner has waited longer than attempts usually take: predictions admit too little work."""
        usual_s = self._turnaround_s.quantile(0.5)
        return self._asked_at is not None and usual_s is not None and now - self._asked_at >= usual_s

    def spread(self, share: float) -> float | None:
        """Return the factor by which attempts exceed their expected turnaround, at this quantile; None if unknown."""
        return self._spread.quantile(share) if len(self._spread) >= SPREAD_NEEDED else None

    def spread_beyond(self, factor: float) -> float | None:
        """Return the factor expected of an attempt that has reached ``factor``; None if no attempt ever exceeded it."""
        return self._spread.median_above(factor)

    def steps_under_way(self, samples_per_group: int) -> float | None:
        """Return the learner steps that pass while 9 of 10 groups are made; None before enough is measured.

        A group takes as long as the longest of its samples: with a long tail that is far above 9 of 10 samples. Whole
        episodes are measured: the sum of several turns' longest times would be far above the longest episode.
        """
        chance = 0.9 ** (1.0 / samples_per_group)
        turnaround_s = self._turnaround_s.quantile(chance)
        if turnaround_s is None or not self.learner_s or len(self._turnaround_s) < SPREAD_NEEDED:
            return None
        if len(self._episode_s) >= EPISODES_NEEDED:
            made_s = self._episode_s.quantile(chance) or 0.0
        else:
            made_s = self.turns * (turnaround_s + (self._environment_s.quantile(0.9) or 0.0))
        return (made_s + (self._scoring_s.quantile(0.9) or 0.0)) / self.learner_s

    def episode_p90_s(self) -> float | None:
        """Return the 90th percentile of the seconds of whole episodes; None without enough of them."""
        return self._episode_s.quantile(0.9) if len(self._episode_s) >= EPISODES_NEEDED else None

    def version_lag_steps(self) -> float | None:
        """Return how old versions usually are when a peer holds them, in learner steps; None if not measured."""
        return self._lag_steps.quantile(0.5)

    def steps_within(self, seconds: float, now: float) -> int:
        """Return how many batches will be formed within so many seconds; 0: what is ready then makes the next one."""
        if not self.step_period_s or self._recorded_at is None:
            return 0
        return max(0, math.ceil((seconds - self.next_in_s(now)) / self.step_period_s))

    def next_in_s(self, now: float) -> float:
        """Return the seconds until the next batch is wanted."""
        if self._asked_at is not None or self._recorded_at is None or not self.step_period_s:
            return 0.0
        return max(0.0, self._recorded_at + self.step_period_s - now)
