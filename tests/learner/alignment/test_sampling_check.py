from __future__ import annotations

import numpy as np
import pytest

from learner.alignment.sampling_check import WATCHED_MAX, SamplingWatch, Surplus, surpluses
from learner.config import SamplingCheckConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.trainer import Trainer
from rollcast.policy.logprobs import TokenStatistics
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Sampling, Segment
from rollcast.wire.token_ids import pack_ids
from tests.learner.tiny import CONFIG, MODEL

CHECK = SamplingCheckConfig()
HONEST, GREEDY = PeerId("honest"), PeerId("greedy")


def sampled(shares: np.ndarray, tokens: np.ndarray) -> Surplus:
    """Return the surplus of tokens [n], as if each was sampled from its distribution [n, vocabulary]."""
    logs = np.log(np.maximum(shares, 1e-300))
    entropies = -(shares * logs).sum(1)
    variances = (shares * (logs + entropies[:, None]) ** 2).sum(1)
    logprobs = logs[np.arange(len(tokens)), tokens]
    return Surplus(
        float((logprobs + entropies).sum()), float(entropies.sum()), float(variances.sum()), float(entropies.max())
    )


def distributions(random: np.random.Generator, count: int, spread: float) -> np.ndarray:
    """Return distributions over 20 tokens; a larger spread makes them more certain."""
    shares = np.exp(random.normal(0.0, spread, (count, 20)))
    return shares / shares.sum(1, keepdims=True)


def draws(random: np.random.Generator, shares: np.ndarray) -> np.ndarray:
    return (shares.cumsum(1) < random.random(len(shares))[:, None]).sum(1).clip(max=shares.shape[1] - 1)


@pytest.mark.parametrize("spread", [1.0, 4.0, 12.0])
@pytest.mark.parametrize("tokens", [5, 50, 500])
def test_honest_samples_do_not_alarm_however_certain_and_however_few(spread: float, tokens: int) -> None:
    random = np.random.default_rng(0)
    found = [
        sampled(shares, draws(random, shares))
        for shares in (distributions(random, tokens, spread) for _ in range(1000))
    ]
    assert not [one for one in found if one.alarms(CHECK)]
    assert max(one.sigmas for one in found) < 5.0
    z = np.array([one.surplus / np.sqrt(one.variance) for one in found])
    assert abs(z.mean()) < 0.2
    assert z.std() < 1.2, "the variance is that of the distributions"


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_greedy_and_cool_samples_alarm_within_some_hundred_tokens(spread: float) -> None:
    random = np.random.default_rng(0)
    shares = distributions(random, 400, spread)
    assert sampled(shares, shares.argmax(1)).alarms(CHECK)
    cool = shares**2 / (shares**2).sum(1, keepdims=True)
    assert sampled(shares, draws(random, cool)).alarms(CHECK)
    hot = shares**0.5 / (shares**0.5).sum(1, keepdims=True)
    assert not sampled(shares, draws(random, hot)).alarms(CHECK), (
        "selection by other criteria favours unlikely tokens too"
    )


def rollouts(trainer: Trainer, sampler: Sampler, peer: PeerId, first_seed: int) -> list[TrainingRow]:
    sampling, greedy = Sampling(1.0, 6, ()), peer == GREEDY
    asked = [SampleRequest((2, 3, 4 + number % 4), first_seed + number) for number in range(16)]
    rows = []
    for number, made in enumerate(sampler.generate(trainer.params(), asked, sampling, greedy)):
        tokens = made.token_ids
        segment = Segment("assistant", Epoch(0), Version(0), peer, pack_ids(tokens), b"\1" * len(tokens), made.logprobs)
        rows.append(TrainingRow(first_seed + number, 0, asked[number].prompt_token_ids, (segment,), 1.0, number % 2))
    return rows


def batch(rows: list[TrainingRow]) -> PackedBatch:
    return pack(rows, time=10, objective=ObjectiveConfig(), completion_tokens_max=6)


def test_an_engine_that_samples_greedily_and_reports_honestly_is_found() -> None:
    trainer = Trainer(MODEL, CONFIG)
    # As a trained policy: not all tokens alike.
    trainer.set_params({name: 20.0 * leaf if name == "embedding" else leaf for name, leaf in trainer.params().items()})
    watch, sampler = SamplingWatch(CHECK), Sampler(MODEL, 4, 6, 16)
    for step in range(6):
        rows = rollouts(trainer, sampler, HONEST, 1000 * step) + rollouts(trainer, sampler, GREEDY, 1000 * step + 500)
        packed = batch(rows)
        found = watch.figures(rows, packed, trainer.behaviour(trainer.params(), packed))
    assert found["sampling_peers_alarming"] == 1.0
    assert found["lacks:greedy"] > 0.3
    assert abs(found["lacks:honest"]) < 0.1
    assert list(found)[2] == "lacks:greedy", "the worst comes first"


def statistics(packed: PackedBatch, logprob: float, entropy: float, variance: float) -> TokenStatistics:
    return TokenStatistics(
        *(np.full(packed.tokens.shape, value, np.float32) for value in (logprob, entropy, variance, 0.0))  # type: ignore[arg-type]
    )


def row(number: int, peer: PeerId, mask: bytes = b"\1\1\0") -> TrainingRow:
    segment = Segment("assistant", Epoch(0), Version(0), peer, pack_ids((3, 4, 5)), mask)
    return TrainingRow(number, 0, (7, 8), (segment,), 1.0, float(number))


def test_trained_tokens_count_and_no_others() -> None:
    rows = [row(0, HONEST), row(1, GREEDY, b"\1\1\1")]
    packed = batch(rows)
    found = surpluses(rows, packed, statistics(packed, -0.5, 2.0, 0.25))
    assert found == {HONEST: Surplus(3.0, 4.0, 0.5, 2.0), GREEDY: Surplus(4.5, 6.0, 0.75, 2.0)}
    assert surpluses(rows, packed, statistics(packed, float("nan"), 2.0, 0.25)) == {}


def test_older_batches_fade_and_peers_remembered_are_bounded() -> None:
    watch = SamplingWatch(SamplingCheckConfig(keep=0.5))
    rows = [row(0, HONEST)]
    packed = batch(rows)
    watch.figures(rows, packed, statistics(packed, 0.0, 2.0, 1.0))
    found = watch.figures(rows, packed, statistics(packed, -2.0, 2.0, 1.0))
    assert found["lacks:honest"] == pytest.approx((0.5 * 4.0 + 0.0) / (0.5 * 4.0 + 4.0))
    many = [row(number, PeerId(f"p{number}")) for number in range(WATCHED_MAX + 3)]
    packed = batch(many)
    found = watch.figures(many, packed, statistics(packed, -2.0, 2.0, 1.0))
    assert len(watch._by_peer) == WATCHED_MAX
    assert len([name for name in found if name.startswith("lacks:")]) == 16
    nothing = batch(rows)
    assert watch.figures(rows, nothing, statistics(nothing, float("nan"), 0.0, 0.0)) == {}
