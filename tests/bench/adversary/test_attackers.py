"""Test that every attacker of the zoo is caught, with a policy that is a table: nothing is compiled for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pytest

from bench.adversary.attackers import (
    ATTACKERS,
    OTHER_SEEDS,
    RINGS,
    VOCABULARY,
    Arena,
    figures_of,
    figures_of_ring,
    until_suspended,
)
from coordinator.core.members.audit_book import SUSPENDED_AT
from learner.alignment.audit import BOUNDS_NATS

BOUND = BOUNDS_NATS["jax-cpu", "float32"]
ROLLOUTS, TOKENS, IDENTITIES = 32, 16, 10
BAD_TRAINED_MAX = 20.0  # of an invite
# Both claim the newest version. What is left of them when tokens beyond the bound have no weight is what that version
# gives, so nothing is to be caught; docs/trust.md has the tokens until they are.
OLD_VERSIONS = {"one_version_old", "two_versions_old"}

Array = np.ndarray[Any, Any]
Params = dict[str, Array]


class TableArena:
    """Stand in for an Arena: the next token depends on the last one alone, through two layers of width 32."""

    tokens = TOKENS

    def __init__(self) -> None:
        self.params, self.other = _params(0), _params(1)

    def sample(
        self,
        params: Params,
        seeds: Sequence[int],
        temperature: float = 1.0,
        rows: int = 0,
        kept: Array | None = None,
    ) -> Array:
        table = _logits(params)
        tokens = np.zeros((len(seeds), self.tokens), np.int32)
        for time in range(self.tokens):
            last = tokens[:, time - 1] if time else tokens[:, 0]
            chosen = (table[last] / temperature + _noise(tuple(seeds), time)).argmax(axis=1)
            tokens[:, time] = chosen if kept is None or time >= kept.shape[1] else kept[:, time]
        return tokens

    def margins(self, completions: Array, seeds: Sequence[int]) -> Array:
        table, found = _logits(self.params), np.zeros(completions.shape, np.float32)
        for time in range(self.tokens):
            last = completions[:, time - 1] if time else np.zeros(len(seeds), np.int32)
            scores = table[last] + _noise(tuple(seeds), time)
            found[:, time] = scores.max(axis=1) - scores[np.arange(len(seeds)), completions[:, time]]
        return found


def _params(seed: int) -> Params:
    chance, width = np.random.default_rng(seed), 32
    layers = {
        f"layers.{number}.feed_forward.down.kernel": chance.normal(0.0, 0.5, (width, width)).astype(np.float32)
        for number in range(2)
    }
    return layers | {"embedding": chance.normal(0.0, 0.6, (VOCABULARY, width)).astype(np.float32)}


def _logits(params: Params) -> Array:
    """Return the logits of each next token, f32 [last token, next token]."""
    embedding = np.asarray(params["embedding"])
    hidden = embedding
    for number in range(2):
        hidden = hidden + np.tanh(hidden @ np.asarray(params[f"layers.{number}.feed_forward.down.kernel"]))
    return np.asarray(hidden @ embedding[::-1].T, np.float32)


@lru_cache(maxsize=256)
def _noise(seeds: tuple[int, ...], time: int) -> Array:
    """Return Gumbel noise by seed and position, f32 [seeds, vocabulary]."""
    rows = [np.random.default_rng((seed, time)).gumbel(size=VOCABULARY) for seed in seeds]
    return np.array(rows, np.float32)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return cast(Arena, TableArena())


def test_honest_tokens_of_the_table_are_within_the_bound(arena: Arena) -> None:
    seeds = [OTHER_SEEDS + number for number in range(ROLLOUTS)]
    assert float(arena.margins(arena.sample(arena.params, seeds), seeds).max()) == 0.0


@pytest.mark.parametrize("name", ATTACKERS)
def test_every_attacker_is_caught_before_more_than_twenty_bad_rollouts_count(name: str, arena: Arena) -> None:
    found = figures_of(ATTACKERS[name](arena, ROLLOUTS), BOUND, IDENTITIES)
    assert found.bad_trained <= BAD_TRAINED_MAX
    assert found.caught_share == 1.0 or name in OLD_VERSIONS


@pytest.mark.parametrize("name", RINGS)
def test_every_ring_of_colluders_loses_its_invite(name: str, arena: Arena) -> None:
    found = figures_of_ring(RINGS[name].attack(arena, ROLLOUTS), BOUND, IDENTITIES, RINGS[name].identities)
    assert found.bad_trained <= BAD_TRAINED_MAX
    assert found.caught_share == 1.0


def test_identities_that_each_cheat_openly_suspend_their_invite_by_their_number() -> None:
    trial = until_suspended(np.ones((8, TOKENS), np.float32), BOUND, np.arange(8), identities=2)
    assert trial.convicted == f"{SUSPENDED_AT} of its identities were convicted by audits"
    assert (trial.tokens, trial.trained) == (SUSPENDED_AT * TOKENS, 0)


def test_what_convicts_no_identity_alone_is_added_up_over_the_invite() -> None:
    margins = np.zeros((10, TOKENS), np.float32)
    margins[:, 3] = 2.0 * BOUND  # one token just beyond in each rollout
    trial = until_suspended(margins, BOUND, np.arange(10), identities=5)
    assert trial.convicted.startswith("sent tokens that its seeds and versions do not give")
    assert trial.tokens <= 5 * TOKENS  # before any identity had a second rollout


def test_a_rollout_that_is_not_what_its_seed_gives_is_bad_though_it_counts() -> None:
    margins = np.zeros((10, TOKENS), np.float32)
    margins[:4, 0] = 0.5 * BOUND
    found = figures_of(margins, BOUND, IDENTITIES)
    assert (found.caught_share, found.bad_trained) == (0.0, 4.0)
