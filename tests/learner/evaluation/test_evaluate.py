from __future__ import annotations

from learner.evaluation.evaluate import complete_prompts
from rollcast.policy.params import initial_params
from rollcast.policy.sampling.sampler import Sampler
from rollcast.wire.rollouts import Sampling
from tests.learner.tiny import MODEL

PROMPTS = [(2,), (3, 4), (5, 6)]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=3, stop_token_ids=(1,))


def test_each_prompt_gets_its_samples_in_order_and_reproducibly() -> None:
    sampler = Sampler(MODEL, prompt_tokens_max=2, new_tokens_max=3, batch_size=4)
    params = initial_params(MODEL, 0)
    sampled = complete_prompts(sampler, params, PROMPTS, SAMPLING, seed=1, samples=3)
    assert [len(completions) for completions in sampled] == [3, 3, 3]
    assert sampled == complete_prompts(sampler, params, PROMPTS, SAMPLING, seed=1, samples=3)
    assert sampled != complete_prompts(sampler, params, PROMPTS, SAMPLING, seed=2, samples=3)
    greedy = complete_prompts(sampler, params, PROMPTS, SAMPLING, seed=1, samples=2, greedy=True)
    assert all(first.token_ids == second.token_ids for first, second in greedy)
