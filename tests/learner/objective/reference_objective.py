"""Compute the objectives of the papers sequence by sequence in NumPy float64, independently of the factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LENGTH_LIMIT = 8


@dataclass(frozen=True)
class Sequence:
    """Trained tokens of one completion, f64 [tokens]; frozen: the log-probabilities without gradient."""

    logprobs: Array
    frozen: Array
    behaviour: Array
    proximal: Array
    reference: Array
    teacher: Array
    reward: float
    group: int
    token_advantages: Array

    @property
    def ratio(self) -> Array:
        return np.exp(self.logprobs - self.behaviour)

    @property
    def frozen_ratio(self) -> Array:
        return np.exp(self.frozen - self.behaviour)


def group_advantages(sequences: list[Sequence], *, divide: bool) -> list[float]:
    result = []
    for sequence in sequences:
        rewards = [other.reward for other in sequences if other.group == sequence.group]
        mean = sum(rewards) / len(rewards)
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        result.append((sequence.reward - mean) / (deviation + 1e-4 if divide else 1.0))
    return result


def others_advantages(sequences: list[Sequence]) -> list[float]:
    result = []
    for index, sequence in enumerate(sequences):
        others = [other.reward for i, other in enumerate(sequences) if other.group == sequence.group and i != index]
        result.append(sequence.reward - sum(others) / len(others))
    return result


def batch_advantages(sequences: list[Sequence], *, divide: bool) -> list[float]:
    rewards = np.array([sequence.reward for sequence in sequences])
    return list((rewards - rewards.mean()) / (rewards.std() + 1e-4 if divide else 1.0))


def surrogate(ratio: Any, advantage: Any, low: float, high: float) -> Any:
    return np.minimum(ratio * advantage, np.minimum(np.maximum(ratio, 1 - low), 1 + high) * advantage)


def over_tokens(parts: list[Array]) -> float:
    return float(np.concatenate(parts).mean())


def over_limit(parts: list[Array]) -> float:
    return sum(float(part.sum()) for part in parts) / LENGTH_LIMIT / len(parts)


def grpo(sequences: list[Sequence]) -> float:
    worth = group_advantages(sequences, divide=True)
    return over_tokens([surrogate(s.ratio, a, 0.2, 0.28) for s, a in zip(sequences, worth, strict=True)])


def dapo(sequences: list[Sequence]) -> float:
    limit, cache = LENGTH_LIMIT, int(0.2 * LENGTH_LIMIT)
    shaped = [
        replace(s, reward=s.reward + min(0.0, max(-1.0, ((limit - cache) - len(s.logprobs)) / cache)))
        for s in sequences
    ]
    worth = group_advantages(shaped, divide=True)
    kept = {one.group for one in shaped if len({other.reward for other in shaped if other.group == one.group}) > 1}
    parts = [surrogate(s.ratio, a, 0.2, 0.28) for s, a in zip(shaped, worth, strict=True) if s.group in kept]
    return over_tokens(parts)


def gspo(sequences: list[Sequence]) -> float:
    total = 0.0
    for s, advantage in zip(sequences, group_advantages(sequences, divide=True), strict=True):
        likelihood_ratio = np.prod(s.ratio) ** (1 / len(s.ratio))
        total += surrogate(likelihood_ratio, advantage, 3e-4, 4e-4)
    return total / len(sequences)


def cispo(sequences: list[Sequence]) -> float:
    worth = group_advantages(sequences, divide=True)
    return over_tokens(
        [np.minimum(s.frozen_ratio, 1.28) * a * s.logprobs for s, a in zip(sequences, worth, strict=True)]
    )


def truncated_is(sequences: list[Sequence]) -> float:
    worth = group_advantages(sequences, divide=True)
    return over_tokens(
        [np.minimum(s.frozen_ratio, 2.0) * a * s.logprobs for s, a in zip(sequences, worth, strict=True)]
    )


def decoupled_ppo(sequences: list[Sequence]) -> float:
    parts = []
    for s, advantage in zip(sequences, group_advantages(sequences, divide=True), strict=True):
        weight = np.minimum(np.exp(s.proximal - s.behaviour), 2.0)
        parts.append(weight * surrogate(np.exp(s.logprobs - s.proximal), advantage, 0.2, 0.2))
    return over_tokens(parts)


def two_sided(sequences: list[Sequence]) -> float:
    parts = []
    for s, advantage in zip(sequences, group_advantages(sequences, divide=True), strict=True):
        weight = np.exp(s.proximal - s.behaviour)
        weight = np.where((weight >= 0.5) & (weight <= 5.0), weight, 0.0)
        parts.append(weight * surrogate(np.exp(s.logprobs - s.proximal), advantage, 0.2, 0.28))
    return over_tokens(parts)


def reinforce(sequences: list[Sequence]) -> float:
    worth = batch_advantages(sequences, divide=False)
    return over_limit([a * s.logprobs for s, a in zip(sequences, worth, strict=True)])


def rloo(sequences: list[Sequence]) -> float:
    return over_limit([a * s.logprobs for s, a in zip(sequences, others_advantages(sequences), strict=True)])


def reinforce_plus_plus(sequences: list[Sequence]) -> float:
    worth = batch_advantages(sequences, divide=True)
    return over_tokens([surrogate(s.ratio, a, 0.2, 0.2) for s, a in zip(sequences, worth, strict=True)])


def dr_grpo(sequences: list[Sequence]) -> float:
    worth = group_advantages(sequences, divide=False)
    return over_limit([surrogate(s.ratio, a, 0.2, 0.2) for s, a in zip(sequences, worth, strict=True)])


def ppo(sequences: list[Sequence]) -> float:
    return over_tokens([surrogate(s.ratio, s.token_advantages, 0.2, 0.2) for s in sequences])


def distillation(sequences: list[Sequence]) -> float:
    parts = []
    for s in sequences:
        reward = s.teacher - s.frozen  # "On-Policy Distillation": minus the reverse KL divergence at the sampled token
        parts.append(np.minimum(s.frozen_ratio, 2.0) * reward * (1.0 + s.logprobs - s.frozen))
    return over_tokens(parts)


OBJECTIVES: dict[str, Callable[[list[Sequence]], float]] = {
    "grpo": grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "decoupled-ppo": decoupled_ppo,
    "reinforce": reinforce,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
    "dr-grpo": dr_grpo,
    "ppo": ppo,
    "truncated-is": truncated_is,
    "two-sided": two_sided,
    "distillation": distillation,
}


def gradients(objective: Callable[[list[Sequence]], float], sequences: list[Sequence]) -> list[Array]:
    """Return central differences with respect to log-probabilities, one array a sequence."""
    nudge, found = 1e-6, []
    for index, sequence in enumerate(sequences):
        own = np.zeros(len(sequence.logprobs))
        for token in range(len(own)):
            values = []
            for sign in (1.0, -1.0):
                moved = sequence.logprobs.copy()
                moved[token] += sign * nudge
                values.append(
                    objective([*sequences[:index], replace(sequence, logprobs=moved), *sequences[index + 1 :]])
                )
            own[token] = (values[0] - values[1]) / (2 * nudge)
        found.append(own)
    return found
