"""Define the configuration of the RL objective: an algorithm by name, and changes to its factors.

A preset is a table of settings, and the fields that a configuration gives replace them. docs/algorithms.md explains
each preset and each factor, with formula and source.
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
    "distillation",
]
Aggregate = Literal["token-mean", "trajectory-mean", "constant-length"]
Advantage = Literal[
    "group-normalised", "group-mean", "leave-one-out", "batch-normalised", "batch-mean", "critic", "none"
]
Importance = Literal["none", "clipped", "truncated", "two-sided", "sequence"]
Surrogate = Literal["log-probability", "clipped", "sequence-clipped"]
Divergence = Literal["none", "k1", "k2", "k3"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
GROUPED: frozenset[Advantage] = frozenset({"group-normalised", "group-mean", "leave-one-out"})

_NARROW = {"clip_low": 0.2, "clip_high": 0.2}  # the clipping range of PPO (Schulman et al. 2017, table 1)
_GRADIENT_ONLY = {"surrogate": "log-probability", "aggregate": "constant-length"}

#: Algorithm -> settings that differ from the defaults of ObjectiveConfig, which are those of grpo.
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
        "distillation": {
            "advantage": "none",
            "surrogate": "log-probability",
            "importance": "truncated",
            "teacher_coefficient": 1.0,
        },
    }
)


class CriticConfig(ConfigModel):
    """The critic of PPO: a model of the policy's shape with one output, initialised from the policy."""

    learning_rate: float = Field(2e-6, gt=0.0)
    """Highest learning rate; all other settings, schedule included, are those of the policy's optimiser. The default is
    that of VAPO (2504.05118, section 5.1) for a model of 32 billion parameters."""
    discount: float = Field(1.0, gt=0.0, le=1.0)
    """Discount per token (gamma of GAE)."""
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0)
    """lambda of GAE: 1 relies on rewards only, 0 on the critic only."""
    value_clip: float = Field(0.2, gt=0.0)
    """Greatest distance of a predicted value from its prediction at the start of the step; larger ones are clipped."""


class ObjectiveConfig(ConfigModel):
    """The RL objective: a preset, and fields that replace its factors. Fields left out are the preset's."""

    algorithm: Algorithm = "grpo"
    """Preset; see docs/algorithms.md."""
    aggregate: Aggregate = "token-mean"
    """Weights of tokens in the loss: equally per token, equally per trajectory, or per token divided by the
    longest possible completion."""
    advantage: Advantage = "group-normalised"
    """Baseline that a completion's reward is compared with, and whether advantages are normalised; "none" leaves
    rewards out, for a policy that learns from a teacher alone."""
    advantage_epsilon: float = Field(1e-4, gt=0.0)
    """Number added to the standard deviation where advantages are divided by it."""
    importance: Importance = "none"
    """Importance weight that corrects for staleness: of the ratio policy / behaviour, or proximal / behaviour where
    proximal is set."""
    importance_low: float = Field(0.0, ge=0.0)
    """Lower bound of clipped and two-sided importance weights."""
    importance_high: float = Field(2.0, gt=0.0)
    """Upper bound of importance weights."""
    surrogate: Surrogate = "clipped"
    """Term whose gradient is taken: log-probability, PPO's clipped ratio, or the clipped ratio of whole sequences."""
    clip_low: float = Field(0.2, gt=0.0, lt=1.0)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.28, gt=0.0)
    """Ratios above 1 + clip_high are clipped."""
    proximal: bool = False
    """Take the clipped ratio to the policy at the start of the step instead of the one that generated the rollout."""
    epochs_per_batch: int = Field(1, ge=1, le=64)
    """Passes over every batch."""
    mini_batches: int = Field(1, ge=1, le=1024)
    """Optimiser steps per pass, each on an equal part of the batch."""
    kl: Divergence = "none"
    """Estimator of the KL divergence from the policy that RL began with, which is penalised."""
    kl_coefficient: float = Field(0.0, ge=0.0)
    """Weight of the KL penalty."""
    teacher_coefficient: float = Field(0.0, ge=0.0)
    """Weight of the reverse KL divergence from the teacher of [teacher], a penalty on each token that the policy
    sampled."""
    entropy_coefficient: float = Field(0.0, ge=0.0)
    """Weight of the bonus for the policy's entropy."""
    balance_coefficient: float | None = Field(None, ge=0.0)
    """Factor of the loss that keeps the loads of a model's experts even; none: the model's own."""
    dynamic_sampling: bool = False
    """Leave groups whose rewards are all equal out of the mean over the batch."""
    pair_share: float = Field(1.0, gt=0.0, le=1.0)
    """Share of a group's pairs that count, those of greatest contrast: the best completion with the worst, and so on
    (Shuffle-R1). 1: all completions count."""
    reshuffle_rounds: int = Field(0, ge=0, le=64)
    """Compose each batch anew from its pairs, in so many rounds, with probabilities in proportion to their advantages
    (Shuffle-R1): a pair then counts up to so many times. 0: every pair counts once."""
    overlong_share: float = Field(0.0, ge=0.0, le=1.0)
    """Last share of the longest possible completion (0 to 1) over which reward falls linearly by 1; below one token:
    no penalty."""
    critic: CriticConfig = CriticConfig()
    """Critic; used with advantage = "critic" only."""

    @property
    def passes(self) -> int:
        """Return the number of optimiser steps per batch."""
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
                f'surrogate "{self.surrogate}" already contains the ratio to the behaviour policy, and importance '
                f'"{self.importance}" would apply it twice: set importance = "none", surrogate = "log-probability", '
                "or proximal = true",
            ),
            (
                self.proximal and not ratio,
                'proximal = true needs a ratio to clip: set surrogate to "clipped" or "sequence-clipped"',
            ),
            (
                self.proximal and not corrected,
                "proximal = true without importance does not correct for staleness: set importance",
            ),
            (
                not ratio and not corrected and self.epochs_per_batch > 1,
                'surrogate "log-probability" without importance is unbiased only for the policy that generated the '
                "rollouts: set epochs_per_batch = 1",
            ),
            (
                self.surrogate == "sequence-clipped" and self.advantage == "critic",
                "the ratio of a sequence needs one advantage per sequence, but a critic gives one per token: set "
                'another advantage, or surrogate = "clipped"',
            ),
            (
                self.dynamic_sampling and self.advantage not in GROUPED,
                "dynamic_sampling leaves out groups whose rewards are all equal, but advantage "
                f'"{self.advantage}" has no groups: set dynamic_sampling = false or an advantage over groups',
            ),
            (
                (self.pair_share < 1.0 or self.reshuffle_rounds > 0) and self.advantage not in GROUPED,
                "pair_share and reshuffle_rounds pair the completions of a group, but advantage "
                f'"{self.advantage}" has no groups: remove them, or set an advantage over groups',
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
                self.advantage == "none" and not self.teacher_coefficient,
                'advantage "none" leaves rewards out, and nothing is left to learn from: set teacher_coefficient',
            ),
            (
                (self.kl == "none") != (self.kl_coefficient == 0.0),
                f'kl = "{self.kl}" and kl_coefficient = {self.kl_coefficient:g} do not go together: give both or none',
            ),
        ]


#: The objective of supervised training: examples have an advantage of 1, so J is their tokens' mean log-probability.
SUPERVISED = ObjectiveConfig(algorithm="reinforce", aggregate="token-mean")


def check_group_size(config: ObjectiveConfig, samples_per_group: int) -> None:
    """Check that groups of this size allow the configured advantage.

    Raises:
        ConfigError: completions are compared within their group, and a group has one completion only.
    """
    if config.advantage in GROUPED and samples_per_group < 2:
        raise ConfigError(
            f"{config.algorithm} cannot learn from groups of {samples_per_group}",
            cause=f'advantage "{config.advantage}" compares a completion with the others of its group',
            fix="raise run.samples_per_group, or choose reinforce, reinforce++ or ppo",
        )
