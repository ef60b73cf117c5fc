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

from bench.programs.hostile_peer import half_of_the_layers
from coordinator.core.events.audit_events import RolloutAudit
from coordinator.core.members.audit_book import AuditBook, AuditRecord
from learner.alignment.audit import FAR
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.noise import seed_words
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.wire.ids import PeerId, RolloutId, Step
from rollcast.wire.joining.invite import QUOTA_DEFAULT
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
GROUP_SLOTS = 4  # of each prompt group that colluders answer between them
ATTACKER = PeerId("attacker")  # the identity of one that works alone
RING_INVITE = "ring"  # with which all identities of a ring joined

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
    "smaller_model": _with(half_of_the_layers),
    "int4": _with(lambda params: _quantised(params, 4)),
    "int8": _with(lambda params: _quantised(params, 8)),
    "one_version_old": _with(lambda params: _moved(params, 1)),
    "two_versions_old": _with(lambda params: _moved(params, 2)),
}


# ---------------------------------------------------------------- colluders


@dataclass(frozen=True, slots=True)
class Ring:
    """Several identities of one invite that answer in turn: rollout n is sent by identity n % identities."""

    attack: Attack
    identities: int


def _mutual_copies(arena: Arena, rollouts: int) -> Array:
    """Let the first of two answer, and the other send the same; they change places after every pair."""
    answers = arena.sample(arena.params, _seeds(rollouts))
    numbers = np.arange(rollouts)
    copied = (numbers % 4 == 1) | (numbers % 4 == 2)
    sources = np.minimum(np.where(copied, numbers ^ 1, numbers), rollouts - 1)
    return arena.margins(answers[sources], _seeds(rollouts))


def _shared_answer(arena: Arena, rollouts: int) -> Array:
    """Have all slots of a group answered with the answer of one of them, the one that the ring likes best."""
    answers = arena.sample(arena.params, _seeds(rollouts))
    groups = np.arange(rollouts) // GROUP_SLOTS
    liked = [max(np.flatnonzero(groups == group), key=lambda one: int(answers[one].sum())) for group in groups]
    return arena.margins(answers[liked], _seeds(rollouts))


RINGS: dict[str, Ring] = {
    "mutual_copies": Ring(_mutual_copies, 2),
    "shared_answer": Ring(_shared_answer, 2),
    "spread_int8": Ring(ATTACKERS["int8"], QUOTA_DEFAULT),  # each identity does too little to be convicted alone
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
    bad_trained: float  # those among all its rollouts with a weight that no honest sampler sends; 99th percentile


@dataclass(slots=True)
class Trial:
    """What became of one identity, or of the invite of one ring."""

    tokens: int = 0  # judged
    trained: int = 0  # rollouts with a weight
    bad_trained: int = 0  # those of them in which a token is not what its seed gives
    convicted: str = ""  # why; empty if it is not

    def judge(self, margins: Array, bound: float) -> None:
        """Count a rollout with these margins, f32 [tokens]."""
        self.tokens += margins.size
        if not (margins > bound).any():
            self.trained += 1
            self.bad_trained += bool((margins > 0.0).any())


def figures_of(margins: Array, bound: float, identities: int, rollouts: int | None = None) -> Figures:
    """Deal an attacker's rollouts, f32 [rollouts, tokens] of margins, to identities and judge each.

    rollouts: how many each identity gets; None: all.
    """
    chance = np.random.default_rng(0)
    orders = [chance.permutation(len(margins))[:rollouts] for _ in range(identities)]
    return _figures(margins, bound, [until_convicted(margins, bound, order) for order in orders])


def figures_of_ring(margins: Array, bound: float, rings: int, identities: int) -> Figures:
    """Let many rings send an attack's rollouts, each in another order, until their invite is suspended.

    Args:
        margins: f32 [rollouts, tokens]; rollout n is sent by identity n % ``identities``.
    """
    chance = np.random.default_rng(0)
    orders = [chance.permutation(len(margins)) for _ in range(rings)]
    return _figures(margins, bound, [until_suspended(margins, bound, order, identities) for order in orders])


def _figures(margins: Array, bound: float, trials: list[Trial]) -> Figures:
    caught = [one for one in trials if one.convicted]
    tokens = [one.tokens for one in caught]
    return Figures(
        share=float((margins > bound).mean()),
        caught_share=len(caught) / len(trials),
        caught_in_64=sum(number <= max(64, margins.shape[1]) for number in tokens) / len(trials),
        tokens_p50=_percentile(tokens, 50.0),
        tokens_p99=_percentile(tokens, 99.0),
        trained=_percentile([one.trained for one in caught], 99.0),
        bad_trained=_percentile([one.bad_trained for one in trials], 99.0),
    )


def _percentile(values: list[int], share: float) -> float:
    return float(np.percentile(values, share)) if values else float("inf")


def until_convicted(margins: Array, bound: float, order: Array) -> Trial:
    """Judge one identity that sends these rollouts until it is convicted; order: i64 [rollouts sent]."""
    record, trial = AuditRecord(), Trial()
    for index in order:
        record.add(finding(margins[index], bound))
        trial.judge(margins[index], bound)
        if record.convicted:
            trial.convicted = record.convicted
            break
    return trial


def until_suspended(margins: Array, bound: float, order: Array, identities: int) -> Trial:
    """Judge a ring until its invite is suspended; a convicted identity of it sends nothing more."""
    book, trial = AuditBook(), Trial()
    for step, index in enumerate(order):
        peer_id = PeerId(f"identity {index % identities}")
        record = book.record(peer_id)
        if record is not None and record.convicted:
            continue
        book.add(Step(step), [finding(margins[index], bound, peer_id)], lambda _: RING_INVITE)
        trial.judge(margins[index], bound)
        trial.convicted = book.suspended(RING_INVITE)
        if trial.convicted:
            break
    return trial


def finding(margins: Array, bound: float, peer_id: PeerId = ATTACKER) -> RolloutAudit:
    """Return what the learner reports about a rollout with these margins."""
    return RolloutAudit(
        rollout_id=RolloutId(1),
        peer_id=peer_id,
        tokens=margins.size,
        beyond=int(np.count_nonzero(margins > bound)),
        far=int(np.count_nonzero(margins > FAR * bound)),
        worst_nats=float(margins.max()),
        bound_nats=bound,
        worst_at=int(margins.argmax()),
    )
