"""Sample as attackers do, compute the margins of their tokens, and follow the coordinator's book until it convicts.

The model is random, with an output head scaled so that a token has about 5 nats and logits are as large as those of
trained models: nothing that is measured here depends on what it says. Older versions differ by one step of Adam in a
random direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coordinator.core.events.audit_events import RolloutAudit
from coordinator.core.members.audit_book import AuditRecord
from learner.alignment.audit import FAR
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.noise import seed_words
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.wire.ids import PeerId, RolloutId
from rollcast.wire.rollouts import Sampling

VOCABULARY = 512
PROMPT = (5, 9, 17, 33)
HEAD_SCALE = 10.0  # of the embedding, which is the head too
LEARNING_RATE = 3e-5  # of the Adam step between two versions
LEARNER_ROWS = 32
SAMPLER_ROWS = 64
ODD_ROWS = 7  # honest tokens are sampled in batches of this size too
OTHER_SEEDS = 1 << 40
COST_ROUNDS = 20
BEST_OF = 4
LATE = 32  # rollouts that a late defector samples honestly first

Array = np.ndarray[Any, Any]


class Arena:
    """A policy, its sampler and the learner's forward pass. Margins are f32 [rollouts, tokens], in nats."""

    def __init__(self, precision: str, tokens: int) -> None:
        shape = {"vocabulary_size": VOCABULARY, "width": 64, "query_heads": 4, "key_value_heads": 2, "head_size": 16}
        values = shape | {"layers": 2, "feed_forward_width": 128, "precision": precision}
        self.model = ModelConfig.model_validate(values)
        self.tokens = tokens
        self.params = _scaled(initial_params(self.model, 0))
        self.other = _scaled(initial_params(self.model, 1))
        self._score = jax.jit(completion_logprobs, static_argnums=0)

    @cached_property
    def _samplers(self) -> dict[int, Sampler]:
        return {
            rows: Sampler(self.model, prompt_tokens_max=len(PROMPT), new_tokens_max=self.tokens, batch_size=rows)
            for rows in (SAMPLER_ROWS, ODD_ROWS)
        }

    def sample(
        self,
        params: Params,
        seeds: list[int],
        temperature: float = 1.0,
        rows: int = SAMPLER_ROWS,
        kept: Array | None = None,
    ) -> Array:
        """Return completions i32 [seeds, tokens]; ``kept``: the tokens that they begin with."""
        sampling = Sampling(temperature, self.tokens, ())
        begun = [()] * len(seeds) if kept is None else [tuple(row) for row in kept.tolist()]
        requests = [SampleRequest(PROMPT, seed, tuple(first)) for seed, first in zip(seeds, begun, strict=True)]
        made = self._samplers[rows].generate(params, requests, sampling)
        rest = np.array([one.token_ids for one in made], np.int32)
        return rest if kept is None else np.concatenate([kept, rest], axis=1)

    def margins(self, completions: Array, seeds: list[int]) -> Array:
        """Return the learner's margins of completions i32 [rollouts, tokens] that claim these seeds."""
        count, before = len(seeds), len(PROMPT)
        whole = np.concatenate([np.tile(np.array(PROMPT, np.int32), (count, 1)), completions], axis=1)
        words = np.array([seed_words(seed) for seed in seeds], np.uint32)
        found = []
        for start in range(0, count, LEARNER_ROWS):
            rows, keys = whole[start : start + LEARNER_ROWS], words[start : start + LEARNER_ROWS]
            short = LEARNER_ROWS - len(rows)
            rows, keys = np.pad(rows, ((0, short), (0, 0))), np.pad(keys, ((0, short), (0, 0)))
            positions = np.broadcast_to(np.arange(rows.shape[1], dtype=np.int32), rows.shape)
            seeds_of = np.broadcast_to(keys[:, None], (*rows.shape, 2))
            ones = np.ones(LEARNER_ROWS, np.float32)
            segments = np.ones(rows.shape, np.int32)
            scored = self._score(self.model, self.params, rows, positions, segments, ones, seeds=seeds_of)
            found.append(np.asarray(scored.margins)[: LEARNER_ROWS - short, before:])
        return np.concatenate(found)

    def cost_ratio(self) -> float:
        """Return the CPU seconds of a forward pass with margins / without, the least of several in turns."""
        rows = np.full((LEARNER_ROWS, len(PROMPT) + self.tokens), PROMPT[0], np.int32)
        positions = np.broadcast_to(np.arange(rows.shape[1], dtype=np.int32), rows.shape)
        inputs = (rows, positions, np.ones(rows.shape, np.int32), np.ones(LEARNER_ROWS, np.float32))
        least = [float("inf")] * 2
        for number in range(2 * (1 + COST_ROUNDS)):
            seeds = np.ones((*rows.shape, 2), np.uint32) if number % 2 else None
            begun_s = time.process_time()
            jax.block_until_ready(self._score(self.model, self.params, *inputs, seeds=seeds))
            if number > 1:  # the first of each kind is compiled
                least[number % 2] = min(least[number % 2], time.process_time() - begun_s)
        return least[1] / least[0]

    def flops_ratio(self) -> float:
        """Return the FLOPs of a forward pass with margins / without, as XLA counts them."""
        rows = np.full((LEARNER_ROWS, len(PROMPT) + self.tokens), PROMPT[0], np.int32)
        inputs = (rows, rows, np.ones(rows.shape, np.int32), np.ones(LEARNER_ROWS, np.float32))
        seeds = np.ones((*rows.shape, 2), np.uint32)
        plain, judged = (
            self._score.lower(self.model, self.params, *inputs, seeds=one).compile().cost_analysis()["flops"]
            for one in (None, seeds)
        )
        return float(judged / plain)

    def honest(self, tokens: int) -> Array:
        """Return margins of at least so many honestly sampled tokens, of two batch sizes."""
        parts = []
        count = -(-tokens // self.tokens)
        for rows, share in ((SAMPLER_ROWS, 0.9), (ODD_ROWS, 0.1)):
            seeds = [rows * OTHER_SEEDS + number for number in range(round(count * share) + 1)]
            parts.append(self.margins(self.sample(self.params, seeds, rows=rows), seeds))
        return np.concatenate(parts)


def _scaled(params: Params) -> Params:
    return {name: leaf * HEAD_SCALE if name == "embedding" else leaf for name, leaf in params.items()}


def _moved(params: Params, steps: int) -> Params:
    """Return parameters that many steps away: each weight moves by the learning rate, in a random direction."""
    keys = jax.random.split(jax.random.key(steps), len(params) * steps)
    moved = dict(params)
    for number, name in enumerate(list(params) * steps):
        signs = jax.random.rademacher(keys[number], params[name].shape, jnp.float32)
        moved[name] = moved[name] + LEARNING_RATE * signs
    return moved


def _quantised(params: Params, bits: int) -> Params:
    """Return parameters rounded to so many bits, each column by its own scale."""
    most = 2 ** (bits - 1) - 1

    def rounded(leaf: jax.Array) -> jax.Array:
        if leaf.ndim < 2:
            return leaf
        scale = jnp.maximum(jnp.max(jnp.abs(leaf), axis=0, keepdims=True), 1e-9) / most
        return jnp.round(leaf / scale) * scale

    return {name: rounded(leaf) for name, leaf in params.items()}


# ---------------------------------------------------------------- attackers


Attack = Callable[[Arena, int], Array]  # (arena, rollouts) -> margins [rollouts, tokens] of what it sends


def _seeds(rollouts: int) -> list[int]:
    return list(range(1, rollouts + 1))


def _with(change: Callable[[Params], Params], temperature: float = 1.0) -> Attack:
    def attack(arena: Arena, rollouts: int) -> Array:
        seeds = _seeds(rollouts)
        return arena.margins(arena.sample(change(arena.params), seeds, temperature), seeds)

    return attack


def _own_seeds(arena: Arena, rollouts: int) -> Array:
    chosen = [OTHER_SEEDS + seed for seed in _seeds(rollouts)]
    return arena.margins(arena.sample(arena.params, chosen), _seeds(rollouts))


def _other_model(arena: Arena, rollouts: int) -> Array:
    return arena.margins(arena.sample(arena.other, _seeds(rollouts)), _seeds(rollouts))


def _half_honest(arena: Arena, rollouts: int) -> Array:
    seeds = _seeds(rollouts)
    begun = arena.sample(arena.params, seeds)[:, : arena.tokens // 2]
    return arena.margins(arena.sample(arena.other, seeds, kept=begun), seeds)


def _poisoned_part(arena: Arena, rollouts: int) -> Array:
    """Change one token of a completion, and sample the rest honestly."""
    seeds = _seeds(rollouts)
    begun = arena.sample(arena.params, seeds)[:, : arena.tokens // 2].copy()
    begun[:, -1] = (begun[:, -1] + 1) % VOCABULARY
    return arena.margins(arena.sample(arena.params, seeds, kept=begun), seeds)


def _canned(arena: Arena, rollouts: int) -> Array:
    text = arena.sample(arena.params, [OTHER_SEEDS])
    return arena.margins(np.tile(text, (rollouts, 1)), _seeds(rollouts))


def _random_text(arena: Arena, rollouts: int) -> Array:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rollouts, arena.tokens)).astype(np.int32)
    return arena.margins(tokens, _seeds(rollouts))


def _copied(arena: Arena, rollouts: int) -> Array:
    """Send what another slot of the group got."""
    others = [seed + 1 for seed in _seeds(rollouts)]
    return arena.margins(arena.sample(arena.params, others), _seeds(rollouts))


def _best_of_n(arena: Arena, rollouts: int) -> Array:
    """Sample with the seed of the lease and with others, and send what it likes best."""
    choices = [[other * OTHER_SEEDS + seed for seed in _seeds(rollouts)] for other in range(BEST_OF)]
    candidates = np.stack([arena.sample(arena.params, seeds) for seeds in choices])
    liked = candidates.sum(axis=2).argmax(axis=0)
    return arena.margins(candidates[liked, np.arange(rollouts)], _seeds(rollouts))


def _late_defector(arena: Arena, rollouts: int) -> Array:
    margins = _with(lambda params: params, 0.9)(arena, rollouts)
    return np.concatenate([np.zeros((LATE, arena.tokens), np.float32), margins])


ATTACKERS: dict[str, Attack] = {
    "temperature_09": _with(lambda params: params, 0.9),
    "temperature_095": _with(lambda params: params, 0.95),
    "greedy": _with(lambda params: params, 0.01),
    "own_seeds": _own_seeds,
    "other_model": _other_model,
    "half_honest": _half_honest,
    "poisoned_part": _poisoned_part,
    "canned": _canned,
    "random_text": _random_text,
    "copied": _copied,
    "best_of_n": _best_of_n,
    "late_defector": _late_defector,
    "int4": _with(lambda params: _quantised(params, 4)),
    "int8": _with(lambda params: _quantised(params, 8)),
    "one_version_old": _with(lambda params: _moved(params, 1)),
    "two_versions_old": _with(lambda params: _moved(params, 2)),
}


# ---------------------------------------------------------------- judgement


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of an attacker's identities."""

    share: float  # of its tokens that are beyond the bound
    caught_share: float  # of its identities, within the tokens that were sampled
    caught_in_64: float  # within their first rollouts of 64 tokens together
    tokens_p50: float  # until conviction, of those that were convicted; infinite without any
    tokens_p99: float
    trained: float  # rollouts with a weight before that, 99th percentile


def figures_of(margins: Array, bound: float, identities: int, rollouts: int | None = None) -> Figures:
    """Deal an attacker's rollouts, f32 [rollouts, tokens] of margins, to identities and judge each.

    rollouts: how many each identity gets; None: all.
    """
    chance = np.random.default_rng(0)
    runs = [_until_convicted(margins, bound, chance, rollouts) for _ in range(identities)]
    caught = [run for run in runs if run is not None]
    tokens, trained = [number for number, _ in caught], [number for _, number in caught]
    return Figures(
        share=float((margins > bound).mean()),
        caught_share=len(caught) / identities,
        caught_in_64=sum(number <= max(64, margins.shape[1]) for number, _ in caught) / identities,
        tokens_p50=_percentile(tokens, 50.0),
        tokens_p99=_percentile(tokens, 99.0),
        trained=_percentile(trained, 99.0),
    )


def _percentile(values: list[int], share: float) -> float:
    return float(np.percentile(values, share)) if values else float("inf")


def _until_convicted(
    margins: Array, bound: float, chance: np.random.Generator, rollouts: int | None
) -> tuple[int, int] | None:
    """Return the tokens and the rollouts with a weight until an identity is convicted; None if it never is."""
    record, trained = AuditRecord(), 0
    for index in chance.permutation(len(margins))[:rollouts]:
        record.add(finding(margins[index], bound))
        if record.convicted:
            return record.tokens, trained
        trained += not (margins[index] > bound).any()
    return None


def finding(margins: Array, bound: float) -> RolloutAudit:
    """Return what the learner reports about a rollout with these margins."""
    return RolloutAudit(
        rollout_id=RolloutId(1),
        peer_id=PeerId("attacker"),
        tokens=margins.size,
        beyond=int(np.count_nonzero(margins > bound)),
        far=int(np.count_nonzero(margins > FAR * bound)),
        worst_nats=float(margins.max()),
        bound_nats=bound,
        worst_at=int(margins.argmax()),
    )
