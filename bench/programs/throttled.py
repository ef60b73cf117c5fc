"""Run a real peer or learner slowed down to declared times, so that other load on the machine changes little.

usage: python -m bench.programs.throttled SECONDS peer|learner CONFIG ...: the arguments of the command line follow.

SECONDS is, for a peer, the least time its engine takes for each token of the longest completion in a slice, and for a
learner the least time of a training step. Work that takes longer anyway is not made shorter.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rollcast.cli.main import main


def throttle_engine(token_s: float) -> None:
    """Make every slice take at least ``token_s`` seconds per token from now on."""
    from peer.engines import jax_engine

    draw = jax_engine.JaxGeneration._generate

    def draw_slowly(generation: jax_engine.JaxGeneration, weights: Any, tokens_max: int) -> Any:
        begun_s = time.monotonic()
        drawn = draw(generation, weights, tokens_max)
        longest = max((len(one.token_ids) for one in drawn), default=0)
        time.sleep(max(0.0, begun_s + token_s * longest - time.monotonic()))
        return drawn

    jax_engine.JaxGeneration._generate = draw_slowly  # type: ignore[method-assign, assignment]


def throttle_learner(step_s: float) -> None:
    """Make every training step take at least ``step_s`` seconds from now on."""
    from learner.training.trainer import Trainer

    train_step = Trainer.train_step

    def train_slowly(trainer: Trainer, *arguments: Any) -> Any:
        begun_s = time.monotonic()
        values = train_step(trainer, *arguments)
        time.sleep(max(0.0, begun_s + step_s - time.monotonic()))
        return values

    Trainer.train_step = train_slowly  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    seconds = float(sys.argv.pop(1))
    throttle = {"peer": throttle_engine, "learner": throttle_learner}[sys.argv[1]]
    throttle(seconds)
    main()
