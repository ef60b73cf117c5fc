from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import jax
import numpy as np
import pytest

from rollcast.policy.logprobs import completion_logprobs, score
from rollcast.policy.noise import gumbel_numpy, seed_words
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import (
    PAGE_TOKENS,
    Completion,
    Generation,
    Sampler,
    SampleRequest,
)
from rollcast.runtime.errors import CacheTooSmall
from rollcast.wire.limits import STOP_TOKENS_MAX
from rollcast.wire.rollouts import Sampling
from tests.policy.tiny import TINY, TINY_EXPERTS, reference_logits

STOP = 1
SAMPLING = Sampling(temperature=0.7, max_new_tokens=5, stop_token_ids=(STOP,))
PROMPTS = [(2,), (3, 4, 5), (6, 7, 8, 9), (10, 2)]


@pytest.fixture(scope="module")
def params() -> Params:
    return initial_params(TINY, 0)


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(TINY, prompt_tokens_max=4, new_tokens_max=5, batch_size=8)


def requests(count: int, first_seed: int = 0) -> list[SampleRequest]:
    return [SampleRequest(PROMPTS[index % 4], seed=first_seed + index) for index in range(count)]


def reference_completion(params: Params, request: SampleRequest, *, greedy: bool) -> tuple[int, ...]:
    """Generate one token at a time from float64 logits and NumPy noise."""
    tokens = list(request.already_generated)
    while len(tokens) < SAMPLING.max_new_tokens and tokens[-1:] != [STOP]:
        context = [*request.prompt_token_ids, *tokens]
        logits = reference_logits(TINY, params, context)[-1] / SAMPLING.temperature
        noise = 0.0 if greedy else gumbel_numpy(request.seed, len(context), TINY.vocabulary_size)
        tokens.append(int(np.argmax(logits + noise)))
    return tuple(tokens)


def generated_to_the_end(
    generation: Generation, slice_tokens: int, first: Mapping[int, Completion] | None = None
) -> list[list[Completion]]:
    """Return every request's pieces, beginning with those of the ``first`` slice."""
    pieces = {number: [piece] for number, piece in (first or {}).items()}
    while not generation.finished:
        for number, piece in generation.generate(slice_tokens).items():
            assert not (pieces.get(number) and pieces[number][-1].finish_reason)
            pieces.setdefault(number, []).append(piece)
    return [pieces[number] for number in range(len(pieces))]


@pytest.mark.parametrize("greedy", [False, True])
def test_tokens_are_those_of_the_definition(params: Params, sampler: Sampler, greedy: bool) -> None:
    asked = requests(8, first_seed=2**63)
    sampled = sampler.generate(params, asked, SAMPLING, greedy=greedy)
    assert [completion.token_ids for completion in sampled] == [
        reference_completion(params, request, greedy=greedy) for request in asked
    ]


def test_completions_end_at_a_stop_token_or_at_the_limit(params: Params, sampler: Sampler) -> None:
    sampled = sampler.generate(params, requests(64), SAMPLING)
    for completion in sampled:
        assert STOP not in completion.token_ids[:-1]
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] == STOP
        else:
            assert len(completion.token_ids) == SAMPLING.max_new_tokens
        assert len(completion.logprobs) == len(completion.token_ids)
    assert {completion.finish_reason for completion in sampled} == {"stop", "length"}


def test_reported_logprobs_and_seeds_are_the_learners(params: Params, sampler: Sampler) -> None:
    sampled = sampler.generate(params, requests(8), SAMPLING)
    pairs = list(zip(requests(8), sampled, strict=True))
    rows = [request.prompt_token_ids + completion.token_ids for request, completion in pairs]
    tokens = np.array([(*row, *[0] * (9 - len(row))) for row in rows], np.int32)
    positions = np.tile(np.arange(9, dtype=np.int32), (8, 1))
    segments = np.array([[int(index < len(row)) for index in range(9)] for row in rows])
    temperature = np.full(8, SAMPLING.temperature, np.float32)
    score = jax.jit(completion_logprobs, static_argnums=0)
    words = np.array([seed_words(request.seed) for request, _ in pairs], np.uint32)
    seeds = np.broadcast_to(words[:, None], (8, 9, 2))
    learned = score(TINY, params, tokens, positions, segments, temperature, seeds=seeds)
    others = score(TINY, params, tokens, positions, segments, temperature, seeds=seeds + np.uint32(1))
    far = 0
    for index, (request, completion) in enumerate(pairs):
        span = slice(len(request.prompt_token_ids), len(rows[index]))
        np.testing.assert_allclose(completion.logprobs, learned.logprobs[index, span], atol=5e-6)
        assert np.array_equal(learned.margins[index, span], np.zeros(len(completion.token_ids)))
        far += int(np.count_nonzero(others.margins[index, span] > 0.1))
    assert far > sum(len(one.token_ids) for one in sampled) // 2, "other seeds sample other tokens"


def test_recorded_routes_are_those_that_the_learner_finds_and_give_its_logprobs() -> None:
    params = initial_params(TINY_EXPERTS, 0)
    sampler = Sampler(TINY_EXPERTS, prompt_tokens_max=4, new_tokens_max=5, batch_size=4, record_routes=True)
    resumed = SampleRequest(PROMPTS[2], seed=3, already_generated=(4, 2))
    asked = [SampleRequest(PROMPTS[2], seed=1), SampleRequest(PROMPTS[0], seed=2), resumed]
    made = sampler.generate(params, asked, SAMPLING)
    tokens, positions, segments = (np.zeros((3, 9), np.int32) for _ in range(3))
    for row, (request, completion) in enumerate(zip(asked, made, strict=True)):
        known = [*request.prompt_token_ids, *request.already_generated]
        whole = [*known, *completion.token_ids]
        tokens[row, : len(whole)], segments[row, : len(whole)] = whole, 1
        positions[row] = np.arange(9)
        assert completion.context_routes is not None
        assert completion.routes is not None
        assert (len(completion.context_routes), len(completion.routes)) == (len(known) - 1, len(completion.token_ids))
    scores = jax.jit(lambda *inputs: score(TINY_EXPERTS, params, *inputs))(
        tokens, positions, segments, np.full(3, SAMPLING.temperature, np.float32)
    )
    for row, completion in enumerate(made):
        recorded = np.concatenate([completion.context_routes, completion.routes])
        assert scores.routed is not None
        assert np.array_equal(recorded, scores.routed.routes[row, : len(recorded)])
        last = len(recorded) + 1
        learners = scores.statistics.logprobs[row, last - len(completion.logprobs) : last]
        np.testing.assert_allclose(completion.logprobs, learners, atol=1e-5)


def test_the_batch_around_a_request_does_not_matter(params: Params, sampler: Sampler) -> None:
    together = sampler.generate(params, requests(8), SAMPLING)
    for request, expected in zip(requests(8), together, strict=True):
        alone = sampler.generate(params, [request], SAMPLING)[0]
        assert alone.token_ids == expected.token_ids
        np.testing.assert_allclose(alone.logprobs, expected.logprobs, atol=1e-5)


def test_more_requests_than_the_batch_run_in_order(params: Params, sampler: Sampler) -> None:
    many = sampler.generate(params, requests(20), SAMPLING)
    assert [c.token_ids for c in many[8:16]] == [
        c.token_ids for c in sampler.generate(params, requests(20)[8:16], SAMPLING)
    ]


def test_a_continuation_samples_the_tokens_of_an_uninterrupted_run(params: Params, sampler: Sampler) -> None:
    for request, whole in zip(requests(8), sampler.generate(params, requests(8), SAMPLING), strict=True):
        for cut in range(1, len(whole.token_ids)):
            begun = SampleRequest(request.prompt_token_ids, request.seed, whole.token_ids[:cut])
            rest = sampler.generate(params, [begun], SAMPLING)[0]
            assert rest.token_ids == whole.token_ids[cut:]
            assert rest.finish_reason == whole.finish_reason


@pytest.mark.parametrize("slice_tokens", [1, 2, 3])
def test_slices_sample_the_same_to_the_bit(params: Params, sampler: Sampler, slice_tokens: int) -> None:
    pieces = generated_to_the_end(sampler.begin(params, requests(8), SAMPLING), slice_tokens)
    for row, whole in zip(pieces, sampler.generate(params, requests(8), SAMPLING), strict=True):
        assert tuple(token for piece in row for token in piece.token_ids) == whole.token_ids
        assert tuple(logprob for piece in row for logprob in piece.logprobs) == whole.logprobs
        assert row[-1].finish_reason == whole.finish_reason


@pytest.mark.parametrize("cut", [1, 3])
def test_renewed_weights_go_on_as_a_continuation_would(params: Params, sampler: Sampler, cut: int) -> None:
    others = initial_params(TINY, 1)
    generation = sampler.begin(params, requests(8), SAMPLING)
    begun = generation.generate(cut)
    generation.renew(others)
    rest = generation.generate(SAMPLING.max_new_tokens)
    assert generation.finished
    assert rest.keys() == {number for number, first in begun.items() if first.finish_reason is None}
    for number, more in rest.items():
        request, first = requests(8)[number], begun[number]
        goes_on = SampleRequest(request.prompt_token_ids, request.seed, first.token_ids)
        (expected,) = sampler.generate(others, [goes_on], SAMPLING)
        assert more.token_ids == expected.token_ids
        np.testing.assert_allclose(more.logprobs, expected.logprobs, atol=1e-5)


def test_kept_caches_are_read_on_and_shared_with_no_rollout_that_begins_later(
    params: Params, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sampler.generate(params, requests(4), SAMPLING)
    generation = sampler.begin(params, requests(4), SAMPLING)
    begun = generation.generate(1)
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "extend", None)  # nothing is read again
        generation.renew(dict(params), "keep")
        more = generation.generate(1)
    for number, piece in more.items():
        assert (*begun[number].token_ids, *piece.token_ids) == whole[number].token_ids[:2]
        assert (*begun[number].logprobs, *piece.logprobs) == whole[number].logprobs[:2]
    others = initial_params(TINY, 1)
    generation.renew(others, "keep")
    generation.add(requests(4))
    rest = generation.generate(SAMPLING.max_new_tokens)
    assert generation.finished
    for number, fresh in enumerate(sampler.generate(others, requests(4), SAMPLING), start=4):
        assert rest[number].token_ids == fresh.token_ids
        np.testing.assert_allclose(rest[number].logprobs, fresh.logprobs, atol=1e-5)
    assert generation._pool.free_pages == generation._pool.pages


def test_sampling_is_random_with_the_models_probabilities(params: Params, sampler: Sampler) -> None:
    one = Sampling(temperature=0.7, max_new_tokens=1, stop_token_ids=())
    draws = 4000
    sampled = sampler.generate(params, [SampleRequest(PROMPTS[1], seed) for seed in range(draws)], one)
    counts = Counter(completion.token_ids[0] for completion in sampled)
    logits = reference_logits(TINY, params, list(PROMPTS[1]))[-1] / 0.7
    shares = np.exp(logits) / np.exp(logits).sum()
    for token, share in enumerate(shares):
        assert abs(counts[token] / draws - share) < 5.0 * np.sqrt(share * (1.0 - share) / draws)


def test_each_stage_compiles_once(params: Params) -> None:
    sampler = Sampler(TINY, prompt_tokens_max=4, new_tokens_max=5, batch_size=4)
    for greedy, count, temperature in ((False, 4, 1.0), (True, 1, 0.5), (False, 3, 2.0)):
        sampling = Sampling(temperature=temperature, max_new_tokens=count, stop_token_ids=(STOP,) * count)
        sampler.generate(params, requests(count), sampling, greedy=greedy)
    generation = sampler.begin(params, requests(4), SAMPLING)
    for slice_tokens in (1, 2, 1):
        generation.generate(slice_tokens)
    assert sampler.compiled_forms() == (1, 1)


def test_a_row_that_has_ended_is_filled_with_the_next_request(params: Params, sampler: Sampler) -> None:
    alone = sampler.generate(params, requests(20), SAMPLING)
    generation = sampler.begin(params, requests(12), SAMPLING)
    first = generation.generate(1)
    generation.add(requests(20)[12:])
    pieces = generated_to_the_end(generation, 2, first)
    for row, whole in zip(pieces, alone, strict=True):
        assert tuple(token for piece in row for token in piece.token_ids) == whole.token_ids
        assert row[-1].finish_reason == whole.finish_reason


def test_requests_that_do_not_fit_yet_wait_and_change_nothing(params: Params, sampler: Sampler) -> None:
    small = Sampler(TINY, prompt_tokens_max=4, new_tokens_max=5, batch_size=8, cache_tokens=3 * PAGE_TOKENS)
    sampled = small.generate(params, requests(8), SAMPLING)
    expected = sampler.generate(params, requests(8), SAMPLING)
    assert [item.token_ids for item in sampled] == [item.token_ids for item in expected]
    tiny = Sampler(TINY, prompt_tokens_max=4, new_tokens_max=5, batch_size=8, cache_tokens=1)
    with pytest.raises(CacheTooSmall):
        tiny.begin(params, requests(8), SAMPLING)


def test_long_contexts_are_read_in_parts_and_shared_by_a_group(params: Params) -> None:
    """Prompts have several pages and more than one bucket; each has a group of samples, begun and new ones."""
    sampler = Sampler(TINY, prompt_tokens_max=40, new_tokens_max=5, batch_size=6)
    assert sampler.buckets() == (16, 64)
    long = tuple(2 + index % 9 for index in range(40))
    asked = [SampleRequest(long[:cut], seed) for cut in (40, 33, 17) for seed in range(3)]
    asked += [SampleRequest(long, 7, already_generated=(4, 5))]
    for request, sampled in zip(asked, sampler.generate(params, asked, SAMPLING), strict=True):
        assert request.already_generated + sampled.token_ids == reference_completion(params, request, greedy=False)


@pytest.mark.parametrize(
    ("request_", "sampling"),
    [
        (SampleRequest((), 0), SAMPLING),
        (SampleRequest((2,) * 5, 0), SAMPLING),
        (SampleRequest((2,), 0, (3,) * 5), SAMPLING),
        (SampleRequest((2,), 2**64), SAMPLING),
        (SampleRequest((2,), 0), Sampling(1.0, 6, ())),
        (SampleRequest((2,), 0), Sampling(1.0, 0, ())),
        (SampleRequest((2,), 0), Sampling(0.0, 5, ())),
        (SampleRequest((2,), 0), Sampling(1.0, 5, (1,) * (STOP_TOKENS_MAX + 1))),
    ],
)
def test_requests_that_never_fit_are_refused(
    params: Params, sampler: Sampler, request_: SampleRequest, sampling: Sampling
) -> None:
    with pytest.raises(ValueError, match=r"tokens|seed|temperature|generate"):
        sampler.generate(params, [request_], sampling)
