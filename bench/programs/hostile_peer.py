"""Run a real peer that cheats: it joins, relays and holds versions as others do, and lies about its work.

usage: python -m bench.programs.hostile_peer KIND peer run CONFIG ...: the arguments of the command line follow KIND.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from rollcast.cli.main import main
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import rollout_to_pb

OTHER_SEEDS = 1 << 40
TEMPERATURE = 0.7
_FORGED_NATS = -1000.0
_KEPT_ANSWERS = 64

Answer = tuple[list[int], Any]  # token ids, finish reason as in rollcast.proto
Lie = Callable[["Answers", Answer], Answer]


class Answers:
    """What this peer has answered so far."""

    def __init__(self) -> None:
        self.random = Random(0)
        self.first: Answer | None = None
        self.before: list[Answer] = []


def _canned(said: Answers, honest: Answer) -> Answer:
    said.first = said.first or honest
    return said.first


def _copied(said: Answers, honest: Answer) -> Answer:
    said.before = [*said.before[-_KEPT_ANSWERS:], honest]
    return said.before[0]


def _random_text(said: Answers, honest: Answer) -> Answer:
    tokens, finish = honest
    return [said.random.choice(tokens) for _ in tokens[:-1]] + tokens[-1:], finish


def _truncated(_said: Answers, honest: Answer) -> Answer:
    return honest[0][: max(1, len(honest[0]) // 2)], pb.LENGTH


def _over_long(_said: Answers, honest: Answer) -> Answer:
    return 2 * honest[0], honest[1]


def _forged_logprobs(_said: Answers, honest: Answer) -> Answer:
    return honest  # its log-probabilities are forged by _told


LIES: dict[str, Lie] = {
    "canned": _canned,
    "copied": _copied,
    "random_text": _random_text,
    "truncated": _truncated,
    "over_long": _over_long,
    "forged_logprobs": _forged_logprobs,
}


def _lie_in_uploads(lie: Lie) -> None:
    from peer.worker import uploads

    said = Answers()
    uploads.rollout_to_pb = lambda rollout: _told(rollout_to_pb(rollout), lie, said)  # type: ignore[attr-defined]


def _told(message: pb.Rollout, lie: Lie, said: Answers) -> pb.Rollout:
    """Put a lie into a rollout: one segment of the last version, for all that was generated."""
    own = [one for one in message.segments if one.role == pb.ASSISTANT]
    honest = [token for one in own for token in one.token_ids]
    tokens, finish = lie(said, (honest, message.finish_reason))
    message.finish_reason = finish
    told = pb.Segment()
    told.CopyFrom(own[-1])
    del told.token_ids[:], told.reported_logprobs[:]
    told.token_ids.extend(tokens)
    told.loss_mask = b"\1" * len(tokens)
    told.reported_logprobs.extend([_FORGED_NATS] * len(tokens))
    kept = [one for one in message.segments if one.role != pb.ASSISTANT]
    del message.segments[:]
    message.segments.extend([*kept, told])
    return message


def _cheat_in_engine(kind: str) -> None:
    from peer.engines import jax_engine

    honest = jax_engine._sample_request

    def own_seeds(item: Any) -> Any:
        asked = honest(item)
        return replace(asked, seed=asked.seed ^ OTHER_SEEDS)

    def own_temperature(item: Any) -> Any:
        asked = honest(item)
        return replace(asked, sampling=replace(asked.sampling or item.sampling, temperature=TEMPERATURE))

    jax_engine._sample_request = {"own_seeds": own_seeds, "temperature": own_temperature}[kind]


def _compute_with_other_weights(_kind: str) -> None:
    """Generate with weights of 1 bit, as a peer may that has no room, or a smaller model, for those that are due."""
    import jax
    import jax.numpy as jnp

    from peer.engines import jax_engine

    honest = jax_engine.JaxEngine._use

    def coarse(leaf: jax.Array) -> jax.Array:
        return jnp.sign(leaf) * jnp.mean(jnp.abs(leaf)) if leaf.ndim >= 2 else leaf

    def use(engine: Any, weights: Any) -> Any:
        return jax.tree.map(coarse, honest(engine, weights))

    jax_engine.JaxEngine._use = use  # type: ignore[method-assign, assignment]


def _hoard(_kind: str) -> None:
    """Take every slot that the coordinator gives, and compute nothing."""
    from peer.engines import jax_engine

    async def never(_generation: Any, _tokens_max: int) -> Sequence[Any]:
        await asyncio.Event().wait()
        return ()

    jax_engine.JaxGeneration.next_slice = never  # type: ignore[method-assign, assignment]


ENGINES: dict[str, Callable[[str], None]] = {
    "own_seeds": _cheat_in_engine,
    "temperature": _cheat_in_engine,
    "other_weights": _compute_with_other_weights,
    "hoarder": _hoard,
}
KINDS = (*ENGINES, *LIES)


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind in LIES:
        _lie_in_uploads(LIES[kind])
    else:
        ENGINES[kind](kind)
    main()
