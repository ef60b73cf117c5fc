"""Let every kind of attacker try, and report what each achieves before it is found.

Parts, each alone with --only; each prints its figures to stderr as it ends, and ``PART_s`` is the seconds that it took.
If one fails, the others are measured all the same: its main keys are null, and the exit status is 1.

- zoo: attackers sample for a learner. Margins are those of the learner's own forward pass, judgements those of the
  coordinator's own book. An attacker's tokens are resampled by rollout into many identities, for the medians and 99th
  percentiles. ``honest_tokens`` were sampled in other batches than the learner computes in, and are dealt to
  ``honest_identities``; ``false_accusations`` counts those that were convicted, ``honest_cpu_s`` is the processor time
  of sampling and judging them. Keys that begin with an attacker's name: ``_share`` of its tokens that are beyond the
  bound, ``_tokens_p50`` and ``_tokens_p99`` until it is convicted (null: not within the tokens sampled), ``_trained``
  rollouts that had a weight before that, at the 99th percentile. The keys over attackers count those whose share is at
  least 0.11 and that cheat in every rollout: an honest rollout convicts nobody, also not who would have cheated.
  ``_bad_trained`` are the rollouts with a weight, also of identities that are never convicted, in which a token is not
  what an honest sampler sends; ``bad_trained_max`` is the most of all attackers. Rings are identities of one invite
  that collude: theirs counts until the invite is suspended, and ``rings_tokens_p99_max`` is the most tokens of a ring.
  ``flops_ratio`` is that of a forward pass with margins divided by that of one without, as XLA counts them, and
  ``cost_ratio`` the same of processor time, with this small model.
- strangers: real processes, an attacker of each kind in turn among honest peers (bench.adversary.strangers):
  ``reward_loss_25`` is the share of the clean run's reward that is lost where a quarter of the fleet is hostile;
  with ``--honest 9`` ``reward_loss_10``. ``honest_quarantined_25`` peers were framed.
- framed: ``framed_honest`` peers lost something because liars accused them, in simulations (bench.adversary.framed).
- lured: ``ssrf_requests`` that a real peer sent to third parties (bench.adversary.lured).
- flood: ``honest_p99_ratio`` and ``rss_growth_mib``; with --honest-sessions what as many honest members take
  (bench.adversary.flood).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

from bench.adversary import flood, lured, strangers
from bench.adversary.attackers import ATTACKERS, RINGS, Arena, Figures, figures_of, figures_of_ring
from bench.adversary.framed import framed_honest
from bench.machine import Outcome
from learner.alignment.audit import BOUNDS_NATS
from rollcast.runtime.errors import ConfigError

PARTS: dict[str, tuple[str, ...]] = {  # in the order in which they run, cheap ones first, with their main keys
    "framed": ("framed_honest",),
    "lured": ("ssrf_requests",),
    "flood": ("honest_p99_ratio", "rss_growth_mib"),
    "zoo": (
        "attackers",
        "caught_share_min",
        "tokens_p99_max",
        "trained_before_max",
        "bad_trained_max",
        "rings_tokens_p99_max",
        "false_accusations",
        "honest_tokens",
    ),
    "strangers": ("reward_loss_{share}",),
}
HONEST_ROLLOUTS = 64  # of each honest identity
AT_TIMES_HONEST = frozenset({"best_of_n"})  # where the answer of the lease's own seed is the best


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts: " + ", ".join(PARTS))
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts that each attacker samples")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a rollout")
    parser.add_argument("--honest-tokens", type=int, default=100_000)
    parser.add_argument("--identities", type=int, default=500, help="that each attacker's rollouts are dealt to")
    parser.add_argument("--honest-identities", type=int, default=10_000, help="that honest rollouts are dealt to")
    flood.add_session_arguments(parser)
    parser.add_argument("--seeds", type=int, default=20, help="simulations of liars")
    parser.add_argument("--honest", type=int, default=3, help="honest peers beside one attacker")
    parser.add_argument("--steps", type=int, default=180, help="learner steps of the runs with real processes")
    parser.add_argument("--set", action="append", default=[], help="override a setting of those runs")


def run(arguments: argparse.Namespace) -> Outcome:
    parts = [part for part in arguments.only.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        raise ConfigError(f"there is no part {sorted(unknown)[0]!r}", fix=f"use some of {', '.join(PARTS)}")
    figures: dict[str, float] = {}
    missing: tuple[str, ...] = ()
    failed: dict[str, str] = {}
    for part in sorted(parts, key=list(PARTS).index):
        begun_s = time.monotonic()
        print(f"{part}: begins", file=sys.stderr, flush=True)
        try:
            found, unknown_keys = _part(part, arguments)
        except Exception as error:  # whatever it is, an hour of other parts' figures must not be lost by it
            traceback.print_exc()
            failed[part] = f"{type(error).__name__}: {error}"
            share = strangers.hostile_percent(arguments.honest)
            found, unknown_keys = {}, tuple(key.format(share=share) for key in PARTS[part])
        figures, missing = figures | found, missing + unknown_keys
        figures[f"{part}_s"] = time.monotonic() - begun_s
        print(f"{part}: {figures[f'{part}_s']:.0f} s, {json.dumps(found)}", file=sys.stderr, flush=True)
    settings_of = {name: value for name, value in vars(arguments).items() if name not in ("json", "name")}
    return Outcome(settings_of, figures, missing=missing, failed=failed)


def _part(part: str, arguments: argparse.Namespace) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the figures of one part, and the keys that have no value."""
    if part == "zoo":
        return _zoo(arguments)
    if part == "strangers":
        settings = [f"coordinator.run.steps={arguments.steps}", *arguments.set]
        return strangers.measure(Path("configs/local.toml"), arguments.honest, settings), ()
    if part == "framed":
        framed, liars = framed_honest(arguments.seeds)
        return {"framed_honest": float(framed), "liars": float(liars)}, ()
    if part == "lured":
        return {"ssrf_requests": lured.requests()}, ()
    shape = {"seconds": flood.SECONDS, "members": flood.MEMBERS, "honest_sessions": arguments.honest_sessions}
    return flood.run(argparse.Namespace(**shape)).figures, ()


def _zoo(arguments: argparse.Namespace) -> tuple[dict[str, float], tuple[str, ...]]:
    arena = Arena(arguments.precision, arguments.tokens)
    bound = BOUNDS_NATS["jax-cpu", arguments.precision]
    begun_s = time.process_time()
    honest = arena.honest(arguments.honest_tokens)
    honest_cpu_s = time.process_time() - begun_s
    found = {
        name: figures_of(attack(arena, arguments.rollouts), bound, arguments.identities)
        for name, attack in ATTACKERS.items()
    }
    rings = {
        name: figures_of_ring(ring.attack(arena, arguments.rollouts), bound, arguments.identities, ring.identities)
        for name, ring in RINGS.items()
    }
    accused = figures_of(honest, bound, arguments.honest_identities, HONEST_ROLLOUTS)
    figures: dict[str, float] = {
        "attackers": float(len(found) + len(rings)),
        "honest_tokens": float(honest.size),
        "honest_identities": float(arguments.honest_identities),
        "honest_margin_max": float(honest.max()),
        "honest_off_share": float((honest > 0.0).mean()),
        "honest_cpu_s": honest_cpu_s,
        "false_accusations": round(accused.caught_share * arguments.honest_identities),
        "cost_ratio": arena.cost_ratio(),
        "flops_ratio": arena.flops_ratio(),
        **_over_all(found),
        "bad_trained_max": max(one.bad_trained for one in (found | rings).values()),
    }
    missing = []
    if all(one.caught_share >= 0.99 for one in rings.values()):
        figures["rings_tokens_p99_max"] = max(one.tokens_p99 for one in rings.values())
    else:
        missing.append("rings_tokens_p99_max")
    for name, one in (found | rings).items():
        figures |= {f"{name}_share": one.share, f"{name}_caught_share": one.caught_share}
        figures |= {f"{name}_caught_in_64": one.caught_in_64, f"{name}_bad_trained": one.bad_trained}
        if one.caught_share >= 0.99:
            figures |= {f"{name}_tokens_p50": one.tokens_p50, f"{name}_tokens_p99": one.tokens_p99}
            figures[f"{name}_trained"] = one.trained
        else:
            missing += [f"{name}_tokens_p50", f"{name}_tokens_p99", f"{name}_trained"]
    return figures, tuple(missing)


def _over_all(found: dict[str, Figures]) -> dict[str, float]:
    plain = [one for name, one in found.items() if one.share >= 0.11 and name not in AT_TIMES_HONEST]
    return {
        "caught_share_min": min(one.caught_in_64 for one in plain),
        "tokens_p99_max": max(one.tokens_p99 for one in plain),
        "trained_before_max": max(one.trained for one in plain),
    }
