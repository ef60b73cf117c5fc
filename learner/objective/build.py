"""Build the configured objective: its factors, and the gauges that it reports."""

from __future__ import annotations

from typing import assert_never

import jax
import jax.numpy as jnp

from learner.objective import factors
from learner.objective.config import ObjectiveConfig
from learner.objective.objective import (
    Factor,
    LogRatio,
    Objective,
    Terms,
    current_to_behaviour,
    current_to_proximal,
    proximal_to_behaviour,
)


def objective(config: ObjectiveConfig) -> Objective:
    """Return the combination of factors that the configuration names.

    Gauges, as means over trained tokens:
        ratio_mean: policy / behaviour.
        clip_fraction: share of tokens whose ratio lies outside the clip range.
        kl_k3: (r - 1) - log r with r = policy / behaviour, which estimates the KL divergence between behaviour and
            policy (Schulman, "Approximating KL divergence") and so measures staleness.
        entropy: entropy of the policy, in nats.
        importance_mean, importance_bounded: mean importance weight, and the share of tokens at or beyond a bound; only
            with importance weights.
        reference_kl: k3 estimate of the divergence from the policy before RL; only with a KL penalty.
        teacher_kl: k1 estimate of the divergence from the teacher; only with one.
    """
    gauges: dict[str, Factor] = {
        "ratio_mean": lambda terms: jnp.exp(current_to_behaviour(terms)),
        "clip_fraction": _clipped_share(config),
        "kl_k3": _staleness_kl,
        "entropy": factors.entropy,
    }
    correction = _correction(config)
    if config.importance != "none":
        gauges["importance_mean"] = correction
        gauges["importance_bounded"] = _bounded_share(config)
    if config.kl != "none":
        gauges["reference_kl"] = factors.k3
    if config.teacher_coefficient:
        gauges["teacher_kl"] = factors.teacher_divergence
    return Objective(correction, _gradient(config), _regulariser(config), gauges)


def _correction(config: ObjectiveConfig) -> Factor:
    low, high, ratio = config.importance_low, config.importance_high, _importance_ratio(config)
    match config.importance:
        case "none":
            return factors.no_correction
        case "clipped":
            return factors.importance(ratio, factors.clipped(low, high))
        case "truncated":
            return factors.importance(ratio, factors.truncated(high))
        case "two-sided":
            return factors.importance(ratio, factors.two_sided(low, high))
        case "sequence":
            return factors.sequence_importance(ratio, factors.truncated(high))
        case _:
            assert_never(config.importance)


def _gradient(config: ObjectiveConfig) -> Factor:
    low, high, ratio = config.clip_low, config.clip_high, _surrogate_ratio(config)
    match config.surrogate:
        case "log-probability":
            return factors.log_probability
        case "clipped":
            return factors.clipped_surrogate(low, high, ratio)
        case "sequence-clipped":
            return factors.sequence_clipped_surrogate(low, high, ratio)
        case _:
            assert_never(config.surrogate)


def _regulariser(config: ObjectiveConfig) -> Factor:
    parts: list[tuple[float, Factor]] = []
    match config.kl:
        case "none":
            pass
        case "k1":
            parts.append((-config.kl_coefficient, factors.k1))
        case "k2":
            parts.append((-config.kl_coefficient, factors.k2))
        case "k3":
            parts.append((-config.kl_coefficient, factors.k3))
        case _:
            assert_never(config.kl)
    if config.teacher_coefficient:
        parts.append((-config.teacher_coefficient, factors.teacher_divergence))
    if config.entropy_coefficient:
        parts.append((config.entropy_coefficient, factors.entropy))
    return factors.weighted_sum(parts)


def _surrogate_ratio(config: ObjectiveConfig) -> LogRatio:
    return current_to_proximal if config.proximal else current_to_behaviour


def _importance_ratio(config: ObjectiveConfig) -> LogRatio:
    return proximal_to_behaviour if config.proximal else current_to_behaviour


def _clipped_share(config: ObjectiveConfig) -> Factor:
    log_ratio = _surrogate_ratio(config)

    def factor(terms: Terms) -> jax.Array:
        logs = log_ratio(terms)
        ratio = jnp.exp(terms.sequence_mean(logs) if config.surrogate == "sequence-clipped" else logs)
        return ((ratio < 1.0 - config.clip_low) | (ratio > 1.0 + config.clip_high)).astype(jnp.float32)

    return factor


def _bounded_share(config: ObjectiveConfig) -> Factor:
    log_ratio = _importance_ratio(config)
    low = config.importance_low if config.importance in ("clipped", "two-sided") else 0.0

    def factor(terms: Terms) -> jax.Array:
        logs = log_ratio(terms)
        ratio = jnp.exp(terms.sequence_mean(logs) if config.importance == "sequence" else logs)
        return ((ratio < low) | (ratio > config.importance_high)).astype(jnp.float32)

    return factor


def _staleness_kl(terms: Terms) -> jax.Array:
    log_ratio = current_to_behaviour(terms)
    return jnp.exp(log_ratio) - 1.0 - log_ratio
