"""Let every kind of attacker sample for a learner, and report after how many tokens each is convicted.

Margins are those of the learner's own forward pass, judgements those of the coordinator's own book. An attacker's
tokens are resampled by rollout into many identities, for the medians and 99th percentiles. ``honest_tokens`` were
sampled in other batches than the learner computes in; ``false_accusations`` counts the identities among them that
were convicted. Keys that begin with an attacker's name: ``_share`` of its tokens that are beyond the bound,
``_tokens_p50`` and ``_tokens_p99`` until it is convicted (null: not within the tokens sampled), ``_trained`` rollouts
that had a weight before that, at the 99th percentile. The keys over attackers count those whose share is at least 0.11.
``cost_ratio`` is the CPU time of a forward pass with margins divided by that of one without, with this small model.
"""

from __future__ import annotations

import argparse

from bench.adversary.attackers import ATTACKERS, Arena, Figures, figures_of
from bench.machine import Outcome
from learner.alignment.audit import BOUNDS_NATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts that each attacker samples")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a rollout")
    parser.add_argument("--honest-tokens", type=int, default=100_000)
    parser.add_argument("--identities", type=int, default=500, help="that each attacker's rollouts are dealt to")


def run(arguments: argparse.Namespace) -> Outcome:
    arena = Arena(arguments.precision, arguments.tokens)
    bound = BOUNDS_NATS["jax-cpu", arguments.precision]
    honest = arena.honest(arguments.honest_tokens)
    found = {
        name: figures_of(attack(arena, arguments.rollouts), bound, arguments.identities)
        for name, attack in ATTACKERS.items()
    }
    accused = figures_of(honest, bound, arguments.identities)
    figures: dict[str, float] = {
        "attackers": float(len(found)),
        "honest_tokens": float(honest.size),
        "honest_margin_max": float(honest.max()),
        "honest_off_share": float((honest > 0.0).mean()),
        "false_accusations": round(accused.caught_share * arguments.identities),
        "cost_ratio": arena.cost_ratio(),
        **_over_all(found),
    }
    missing = []
    for name, one in found.items():
        figures |= {f"{name}_share": one.share, f"{name}_caught_share": one.caught_share}
        if one.caught_share >= 0.99:
            figures |= {f"{name}_tokens_p50": one.tokens_p50, f"{name}_tokens_p99": one.tokens_p99}
            figures[f"{name}_trained"] = one.trained
        else:
            missing += [f"{name}_tokens_p50", f"{name}_tokens_p99", f"{name}_trained"]
    settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "name")}
    return Outcome(settings, figures, missing=tuple(missing))


def _over_all(found: dict[str, Figures]) -> dict[str, float]:
    plain = [one for one in found.values() if one.share >= 0.11]
    return {
        "caught_share_min": min(one.caught_in_64 for one in plain),
        "tokens_p99_max": max(one.tokens_p99 for one in plain),
        "trained_before_max": max(one.trained for one in plain),
    }
