"""Which objective the learner follows: an algorithm by name, and changes to its factors.

A preset is a table of settings; what the configuration says comes on top of it. What each is for, with formula and
source: docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from rollcast.runtime.config import ConfigModel
from rollcast.runtime.errors import ConfigError

Algorithm = Literal[
    "grpo",
    "dapo",
    "gspo",
    "cispo",
    "decoupled-ppo",
    "reinforce",
    "rloo",
    "reinforce++",
    "dr-grpo",
    "ppo",
    "truncated-is",
    "two-sided",
]
Aggregate = Literal["token-mean", "trajectory-mean", "constant-length"]
Advantage = Literal["group-normalised", "group-mean", "leave-one-out", "batch-normalised", "batch-mean", "critic"]
Importance = Literal["none", "clipped", "truncated", "two-sided", "sequence"]
Surrogate = Literal["log-probability", "clipped", "sequence-clipped"]
Divergence = Literal["none", "k1", "k2", "k3"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
GROUPED: frozenset[Advantage] = frozenset({"group-normalised", "group-mean", "leave-one-out"})

_NARROW = {"clip_low": 0.2, "clip_high": 0.2}  # PPO's own (Schulman et al. 2017, table 1)
_GRADIENT_ONLY = {"surrogate": "log-probability", "aggregate": "constant-length"}

#: Algorithm -> what differs from the defaults of ObjectiveConfig, which are those of grpo.
PRESETS: Mapping[Algorithm, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {},
        "dapo": {"dynamic_sampling": True, "overlong_share": 0.2},
        "gspo": {
            "aggregate": "trajectory-mean",
            "surrogate": "sequence-clipped",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
        },
        "cispo": {"surrogate": "log-probability", "importance": "clipped", "importance_high": 1.28},
        "decoupled-ppo": {"proximal": True, "importance": "truncated", "mini_batches": 2, **_NARROW},
        "reinforce": {"advantage": "batch-mean", **_GRADIENT_ONLY},
        "rloo": {"advantage": "leave-one-out", **_GRADIENT_ONLY},
        "reinforce++": {"advantage": "batch-normalised", **_NARROW},
        "dr-grpo": {"aggregate": "constant-length", "advantage": "group-mean", **_NARROW},
        "ppo": {"advantage": "critic", "mini_batches": 2, **_NARROW},
        "truncated-is": {"surrogate": "log-probability", "importance": "truncated"},
        "two-sided": {
            "proximal": True,
            "importance": "two-sided",
            "importance_low": 0.5,
            "importance_high": 5.0,
        },
    }
)


class CriticConfig(ConfigModel):
    """The critic of PPO: a model of the policy's shape with one output, started from the policy."""

    learning_rate: float = Field(1e-3, gt=0.0)
    """Adam, constant; the moments' decays and the largest gradient norm are the policy's."""
    discount: float = Field(1.0, gt=0.0, le=1.0)
    """gamma of GAE, a token."""
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0)
    """lambda of GAE: 1 trusts rewards only, 0 the critic only."""
    value_clip: float = Field(0.2, gt=0.0)
    """A value counts as at most this far from what it was at the start of the step."""


class ObjectiveConfig(ConfigModel):
    """The RL objective: a preset, and factors that replace its own. Fields left out are the preset's."""

    algorithm: Algorithm = "grpo"
    """Preset; see docs/algorithms.md."""
    aggregate: Aggregate = "token-mean"
    """How tokens are weighed: all the same, trajectories all the same, or by the longest completion there may be."""
    advantage: Advantage = "group-normalised"
    """What a completion is compared with."""
    advantage_epsilon: float = Field(1e-4, gt=0.0)
    """Added to the standard deviation where advantages are divided by one."""
    importance: Importance = "none"
    """Weight against staleness: of policy / behaviour, or of proximal / behaviour where proximal is set."""
    importance_low: float = Field(0.0, ge=0.0)
    """Lower bound of clipped and two-sided weights."""
    importance_high: float = Field(2.0, gt=0.0)
    """Upper bound of weights."""
    surrogate: Surrogate = "clipped"
    """Gradient: log-probability, PPO's clipped ratio, or the clipped ratio of whole sequences."""
    clip_low: float = Field(0.2, gt=0.0, lt=1.0)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.28, gt=0.0)
    """Ratios above 1 + clip_high are clipped."""
    proximal: bool = False
    """The clipped ratio is to the policy at the start of the step, not to the one that made the rollout."""
    epochs_per_batch: int = Field(1, ge=1, le=64)
    """Times that every batch is gone through."""
    mini_batches: int = Field(1, ge=1, le=1024)
    """Optimiser steps each time, on equal parts of the batch."""
    kl: Divergence = "none"
    """Penalty for leaving the policy that RL began with: estimator of the divergence."""
    kl_coefficient: float = Field(0.0, ge=0.0)
    """Its weight."""
    entropy_coefficient: float = Field(0.0, ge=0.0)
    """Weight of the policy's entropy, which is rewarded."""
    dynamic_sampling: bool = False
    """Groups whose rewards are all equal do not count in the mean over the batch."""
    overlong_share: float = Field(0.0, ge=0.0, le=1.0)
    """Last part of the longest completion in which reward falls linearly by 1; below one token: none."""
    critic: CriticConfig = CriticConfig()
    """Only with advantage = "critic"."""

    @property
    def passes(self) -> int:
        """Optimiser steps a batch."""
        return self.epochs_per_batch * self.mini_batches

    @model_validator(mode="before")
    @classmethod
    def _on_top_of_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        algorithm = given.get("algorithm", "grpo")
        preset = next((settings for name, settings in PRESETS.items() if name == algorithm), {})
        return {**preset, **given}

    @model_validator(mode="after")
    def _makes_sense(self) -> ObjectiveConfig:
        for wrong, why in self._contradictions():
            if wrong:
                raise ValueError(why)
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        ratio = self.surrogate != "log-probability"
        corrected = self.importance != "none"
        low, high = self.importance_low, self.importance_high
        return [
            (
                ratio and corrected and not self.proximal,
                f'surrogate "{self.surrogate}" already holds the ratio to the behaviour policy: importance '
                f'"{self.importance}" would count it twice; set importance = "none", surrogate = "log-probability", '
                "or proximal = true",
            ),
            (
                self.proximal and not ratio,
                'proximal = true needs a ratio to clip: set surrogate to "clipped" or "sequence-clipped"',
            ),
            (
                self.proximal and not corrected,
                "proximal = true leaves staleness without any correction: set importance",
            ),
            (
                not ratio and not corrected and self.epochs_per_batch > 1,
                "a log-probability without importance is right for the policy that made the rollouts only: "
                "set epochs_per_batch = 1",
            ),
            (
                self.surrogate == "sequence-clipped" and self.advantage == "critic",
                "a sequence's ratio needs one advantage for the sequence, a critic gives one a token",
            ),
            (
                self.dynamic_sampling and self.advantage not in GROUPED,
                f'dynamic_sampling leaves out groups without advantage, but advantage "{self.advantage}" has no groups',
            ),
            (
                self.importance in ("two-sided", "clipped") and low >= high,
                f"importance_low {low:g} is not below importance_high {high:g}",
            ),
            (
                self.importance == "two-sided" and not 0.0 < low < 1.0 < high,
                f"two-sided importance keeps ratios around 1, but its bounds are {low:g} and {high:g}",
            ),
            (
                corrected and high < 1.0,
                f"importance_high {high:g} cuts off rollouts of the current policy, whose weight is 1",
            ),
            (
                (self.kl == "none") != (self.kl_coefficient == 0.0),
                f'kl = "{self.kl}" and kl_coefficient = {self.kl_coefficient:g} do not go together: give both or none',
            ),
        ]


def check_group_size(config: ObjectiveConfig, samples_per_group: int) -> None:
    """That advantages can be told with groups of this size.

    Raises:
        ConfigError: a completion is compared with its group, which has no other.
    """
    if config.advantage in GROUPED and samples_per_group < 2:
        raise ConfigError(
            f"{config.algorithm} cannot learn from groups of {samples_per_group}",
            cause=f'advantage "{config.advantage}" compares a completion with the others of its group',
            fix="raise run.samples_per_group, or choose reinforce, reinforce++ or ppo",
        )
