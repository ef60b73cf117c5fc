"""Summarise what the learner reports about itself, for screens and the capacity model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coordinator.core.members.mismatch import PEER_KEYS
from rollcast.runtime.windows import Series, Window
from rollcast.wire.ids import Step

SIGNALS_KEPT = 500  # learner steps
RECENT_STEPS = 20  # over which what limits the run now is judged

#: Share of the learner's time above which its own step, and nothing else, limits the run.
LEARNER_LIMITS_SHARE = 0.85

WAITED = "learner_waited"  # kind of the note about what a wait of the learner consisted of
WaitStage = Literal["no peer", "broadcast", "evaluation", "prompts", "generate", "score", "store", "pacing", "paused"]
"""What the learner waits for where it waits for a batch."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one learner step, and for how many of them it computed."""

    step_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class StepSignal:
    """What a step says about whether the policy learns; None where the learner did not report it."""

    step: int
    reward: float  # mean
    entropy: float | None = None  # nats a token
    flat_groups_share: float | None = None  # of the prompt groups, those in which all rewards are equal
    cut_short_share: float | None = None  # of the rollouts, those that ended at the limit on their length


@dataclass(slots=True)
class LearnerProgress:
    """Holds the learner's figures. ``step`` is the number of steps that it completed."""

    phase: str = ""  # empty until the learner first reports
    detail: str = ""
    step: int = 0
    called_at: float | None = None  # of its last call, on the core's clock; None before the first since the start
    values: dict[str, float] = field(default_factory=dict)  # newest value of every figure
    reward_history: Series = field(default_factory=Series)
    signals: deque[StepSignal] = field(default_factory=lambda: deque(maxlen=SIGNALS_KEPT))
    train_s: Window = field(default_factory=Window)  # seconds per step apart from waiting
    step_times: deque[StepTime] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    waits: deque[dict[WaitStage, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Seconds by stage of the newest waits for a batch, oldest first."""
    _busy_s: float = 0.0
    _total_s: float = 0.0
    _steps_seen: int = 0

    def status_changed(self, phase: str, detail: str, values: Mapping[str, float]) -> None:
        self.phase, self.detail = phase, detail
        self.values.update(values)

    def step_finished(self, step: Step, values: Mapping[str, float]) -> None:
        """Take over the figures of a completed step. The first one seen compiles, and is left out of all timing."""
        if step <= self.step:
            return  # replayed after a restart: already counted
        self.step = step
        # Peers join and leave, so only the newest step's figures about peers are kept.
        self.values = {name: value for name, value in self.values.items() if not name.startswith(PEER_KEYS)}
        self.values.update(values)
        reward = values.get("reward_mean")
        if reward is not None and math.isfinite(reward):
            self.reward_history.add(step, reward)
            others = (values.get(name) for name in ("entropy", "flat_groups_share", "cut_short_share"))
            self.signals.append(StepSignal(step, reward, *others))
        self._steps_seen += 1
        step_s = values.get("step_s", 0.0)
        if self._steps_seen > 1 and step_s > 0.0:
            busy_s = values.get("train_s", 0.0) + values.get("behaviour_s", 0.0)
            self._total_s += step_s
            self._busy_s += busy_s
            self.step_times.append(StepTime(step_s, busy_s))
            self.train_s.add(max(0.0, step_s - values.get("wait_s", 0.0)))

    @property
    def is_warm_starting(self) -> bool:
        """Whether the warm start goes on; its last report has its duration."""
        return self.phase == "warm_start" and "warm_start_s" not in self.values

    @property
    def utilisation(self) -> float | None:
        """Share of the learner's time in which it computed; None before the second step."""
        return self._busy_s / self._total_s if self._total_s else None

    @property
    def recent_utilisation(self) -> float | None:
        """The same share, of the newest steps, in which time that an operator paused the run does not count."""
        total_s = self.recent_s
        return sum(one.busy_s for one in self.step_times) / total_s if total_s > 0.0 else None

    @property
    def recent_s(self) -> float:
        """Seconds of the newest steps, without pauses by an operator."""
        return sum(one.step_s for one in self.step_times) - sum(one.get("paused", 0.0) for one in self.recent_waits)

    @property
    def recent_waits(self) -> list[dict[WaitStage, float]]:
        """The waits for the batches of the newest steps."""
        return list(self.waits)[-len(self.step_times) :] if self.step_times else []
