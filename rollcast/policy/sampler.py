"""Batched sampling with a KV cache: prefill, then decode in slices until every row has ended.

Shapes are fixed by the constructor, so each of the two stages compiles once (a second time if completions that others
began are ever continued, and a third stage if weights are ever changed under way). How many tokens a slice has is an
argument of the compiled loop: however a completion is sliced, its tokens are the same to the bit. A row's tokens are a
function of weights, context, seed and temperature; the batch around it changes logits only by float rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollcast.policy.cache import Cache, decode, prefill
from rollcast.policy.config import ModelConfig
from rollcast.policy.noise import gumbel, seed_words
from rollcast.policy.params import Params, bind
from rollcast.wire.rollouts import FinishReason, Sampling

# Stop tokens are a fixed-size argument of the compiled decode loop; a tokenizer needs one or two.
STOP_TOKENS_MAX = 8
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One completion to draw. already_generated: its first tokens, drawn earlier, perhaps elsewhere."""

    prompt_token_ids: tuple[int, ...]
    seed: int  # unsigned, 64 bits
    already_generated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Newly drawn tokens (stop token included, already_generated not) and log p of each at the temperature."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None  # None: it goes on


class _Controls(NamedTuple):
    """What the decode loop is told; one compiled form serves all values."""

    lengths: Any  # i32 [batch], tokens of context
    budgets: Any  # i32 [batch], tokens still to draw; 0 for rows that only fill the batch
    seeds: Any  # uint32 [batch, 2]
    stop_tokens: Any  # i32 [STOP_TOKENS_MAX], filled up with -1
    temperature: Any  # f32
    noise_scale: Any  # f32: 1 samples, 0 is greedy


class _Drawn(NamedTuple):
    tokens: jax.Array  # i32 [batch, new_tokens_max]
    logprobs: jax.Array  # f32 [batch, new_tokens_max]
    counts: jax.Array  # i32 [batch]


class _Loop(NamedTuple):
    index: jax.Array  # i32, tokens drawn by rows that go on
    last: jax.Array  # i32 [batch], newest token
    done: jax.Array  # bool [batch]
    drawn: _Drawn
    cache: Cache


class Sampler:
    """Draws completions for up to ``batch_size`` requests at a time."""

    def __init__(self, config: ModelConfig, prompt_tokens_max: int, new_tokens_max: int, batch_size: int) -> None:
        self.batch_size = batch_size
        self.new_tokens_max = new_tokens_max
        self._config = config
        self._prompt_tokens_max = prompt_tokens_max
        self._prefill = jax.jit(self._prefill_batch)
        self._refill = jax.jit(self._refill_batch, donate_argnums=1)
        self._decode = jax.jit(self._decode_batch, donate_argnums=1)

    def generate(
        self, params: Params, requests: Sequence[SampleRequest], sampling: Sampling, greedy: bool = False
    ) -> list[Completion]:
        """Draw one completion a request, in order; more requests than batch_size run as several batches.

        greedy: take the likeliest token; log-probabilities are those at the temperature all the same.

        Raises:
            ValueError: a request or the sampling parameters do not fit the shapes given to the constructor.
        """
        for request in requests:
            self._check(request, sampling)
        completions: list[Completion] = []
        for start in range(0, len(requests), self.batch_size):
            drawing = self.begin(params, requests[start : start + self.batch_size], sampling, greedy)
            completions += drawing.draw(self.new_tokens_max)
        return completions

    def begin(
        self, params: Params, requests: Sequence[SampleRequest], sampling: Sampling, greedy: bool = False
    ) -> Drawing:
        """One batch to be drawn a slice at a time; nothing is computed yet (see generate for the arguments).

        Raises:
            ValueError: there are more requests than batch_size, or one does not fit (see generate).
        """
        if len(requests) > self.batch_size:
            raise ValueError(f"{len(requests)} requests, more than the batch of {self.batch_size}")
        for request in requests:
            self._check(request, sampling)
        return Drawing(self, params, requests, sampling, greedy)

    def compiled_forms(self) -> tuple[int, int]:
        """How many forms of prefill and of decode have been compiled so far."""
        return self._prefill._cache_size(), self._decode._cache_size()

    def _check(self, request: SampleRequest, sampling: Sampling) -> None:
        if not 1 <= len(request.prompt_token_ids) <= self._prompt_tokens_max:
            raise ValueError(f"prompt of {len(request.prompt_token_ids)} tokens, not 1 to {self._prompt_tokens_max}")
        if not 1 <= sampling.max_new_tokens <= self.new_tokens_max:
            raise ValueError(f"max_new_tokens {sampling.max_new_tokens}, not 1 to {self.new_tokens_max}")
        if len(request.already_generated) >= sampling.max_new_tokens:
            raise ValueError("nothing left to generate: already_generated fills max_new_tokens")
        if len(sampling.stop_token_ids) > STOP_TOKENS_MAX:
            raise ValueError(f"{len(sampling.stop_token_ids)} stop tokens, more than {STOP_TOKENS_MAX}")
        if sampling.temperature <= 0.0:
            raise ValueError(f"temperature {sampling.temperature} is not positive")

    def _arrays(
        self, requests: Sequence[SampleRequest], sampling: Sampling, greedy: bool
    ) -> tuple[np.ndarray[Any, Any], _Controls]:
        continued = any(request.already_generated for request in requests)
        width = self._prompt_tokens_max + (self.new_tokens_max if continued else 0)
        context = np.zeros((self.batch_size, width), np.int32)
        lengths = np.ones(self.batch_size, np.int32)  # rows that only fill the batch read one token of padding
        budgets = np.zeros(self.batch_size, np.int32)
        seeds = np.zeros((self.batch_size, 2), np.uint32)
        for row, request in enumerate(requests):
            tokens = request.prompt_token_ids + request.already_generated
            context[row, width - len(tokens) :] = tokens
            lengths[row] = len(tokens)
            budgets[row] = sampling.max_new_tokens - len(request.already_generated)
            seeds[row] = seed_words(request.seed)
        stop_tokens = np.full(STOP_TOKENS_MAX, _NO_TOKEN, np.int32)
        stop_tokens[: len(sampling.stop_token_ids)] = sampling.stop_token_ids
        temperature, noise_scale = np.float32(sampling.temperature), np.float32(0.0 if greedy else 1.0)
        return context, _Controls(lengths, budgets, seeds, stop_tokens, temperature, noise_scale)

    def _prefill_batch(self, params: Params, context: jax.Array, controls: _Controls) -> _Loop:
        """Read the contexts and draw the first token of every row."""
        batch, width = context.shape
        positions = jnp.arange(width, dtype=jnp.int32)[None, :] - (width - controls.lengths)[:, None]
        model = bind(self._config, params)
        logits, cache = prefill(
            model, context, jnp.maximum(positions, 0), (positions >= 0).astype(jnp.int32), self.new_tokens_max
        )
        shape = (batch, self.new_tokens_max)
        drawn = _Drawn(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), jnp.zeros(batch, jnp.int32))
        start = _Loop(jnp.int32(0), jnp.zeros(batch, jnp.int32), controls.budgets <= 0, drawn, cache)
        return _draw(start, logits, controls)

    def _refill_batch(self, params: Params, loop: _Loop, context: jax.Array, controls: _Controls) -> _Loop:
        """Read contexts and drawn tokens again with other weights, each into the cache slot that it has already.

        Slots of tokens not drawn yet are filled with what nobody sees before it is overwritten.
        """
        tokens = jnp.concatenate((context, loop.drawn.tokens), axis=1)
        first_slots = context.shape[1] - controls.lengths
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :] - first_slots[:, None]
        model = bind(self._config, params)
        _, cache = prefill(model, tokens, jnp.maximum(positions, 0), (positions >= 0).astype(jnp.int32), 0)
        return loop._replace(cache=cache)

    def _decode_batch(self, params: Params, loop: _Loop, controls: _Controls, limit: jax.Array) -> _Loop:
        """Draw until every row has ended or has ``limit`` new tokens."""
        model = bind(self._config, params)
        slots = jnp.arange(loop.cache[0].keys.shape[1], dtype=jnp.int32)
        width = loop.cache[0].keys.shape[1] - self.new_tokens_max
        first_slots = width - controls.lengths

        def running(loop: _Loop) -> jax.Array:
            return (loop.index < limit) & ~jnp.all(loop.done)

        def advance(loop: _Loop) -> _Loop:
            slot = width + loop.index - 1
            visible = (slots[None, :] >= first_slots[:, None]) & (slots <= slot)[None, :]
            positions = controls.lengths + loop.index - 1
            logits, cache = decode(model, loop.last, positions, visible, loop.cache, slot)
            return _draw(loop._replace(cache=cache), logits, controls)

        end: _Loop = jax.lax.while_loop(running, advance, loop)
        return end


class Drawing:
    """One batch under way; ``Sampler.begin`` makes it. Its cache stays on the device between two slices."""

    def __init__(
        self, sampler: Sampler, params: Params, requests: Sequence[SampleRequest], sampling: Sampling, greedy: bool
    ) -> None:
        self._sampler = sampler
        self._params = params
        self._context, self._controls = sampler._arrays(requests, sampling, greedy)
        self._stop_tokens = frozenset(sampling.stop_token_ids)
        self._told = [0] * len(requests)
        self._limit = 0
        self._loop: _Loop | None = None
        self.finished = False
        """Every row has ended."""

    def draw(self, tokens_max: int) -> list[Completion]:
        """Go on with every row that has not ended, by up to ``tokens_max`` tokens.

        Returns:
            for each request its tokens since the last call; a row that has ended says so again.
        """
        sampler = self._sampler
        self._limit = min(self._limit + tokens_max, sampler.new_tokens_max)
        loop = self._loop or sampler._prefill(self._params, self._context, self._controls)
        self._loop = loop = sampler._decode(self._params, loop, self._controls, np.int32(self._limit))
        drawn, done = jax.device_get((loop.drawn, loop.done))
        self.finished = bool(done.all())
        return [self._new_tokens(row, drawn, ended=bool(done[row])) for row in range(len(self._told))]

    def renew(self, params: Params) -> None:
        """Go on with these weights: what was read and drawn so far is read again with them."""
        self._params = params
        if self._loop is not None and not self.finished:
            self._loop = self._sampler._refill(params, self._loop, self._context, self._controls)

    def _new_tokens(self, row: int, drawn: _Drawn, *, ended: bool) -> Completion:
        count = int(drawn.counts[row])
        new = slice(self._told[row], count)
        self._told[row] = count
        finish: FinishReason | None = None
        if ended:
            finish = "stop" if int(drawn.tokens[row, count - 1]) in self._stop_tokens else "length"
        return Completion(tuple(drawn.tokens[row, new].tolist()), tuple(drawn.logprobs[row, new].tolist()), finish)


def _draw(loop: _Loop, logits: jax.Array, controls: _Controls) -> _Loop:
    """Draw the next token of every row and note it for those that are not done."""
    scaled = logits / controls.temperature
    noise = gumbel(controls.seeds, controls.lengths + loop.index, logits.shape[-1])
    tokens = jnp.argmax(scaled + controls.noise_scale * noise, axis=-1).astype(jnp.int32)
    logprobs = jnp.take_along_axis(jax.nn.log_softmax(scaled, axis=-1), tokens[:, None], axis=-1)[:, 0]
    drawn = _Drawn(
        tokens=loop.drawn.tokens.at[:, loop.index].set(tokens),
        logprobs=loop.drawn.logprobs.at[:, loop.index].set(logprobs),
        counts=loop.drawn.counts + (~loop.done).astype(jnp.int32),
    )
    index = loop.index + 1
    stopped = jnp.any(tokens[:, None] == controls.stop_tokens[None, :], axis=1)
    return _Loop(index, tokens, loop.done | stopped | (index >= controls.budgets), drawn, loop.cache)
