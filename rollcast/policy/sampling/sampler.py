"""Sample with continuous batching: read prompts into pages, generate in slices, refill rows that have ended.

Three stages, each compiled for few shapes: `extend` reads tokens into pages (one form for each of LENGTH_BUCKETS that
prompts need), `copy` gives a sequence its own copy of the page that its prompt ends in, `decode` generates up to a
slice
of tokens for every row. A prompt is read once for all requests that have it, up to its last token; each row reads that
token itself when it generates its first one, so that tokens are sampled in one place only.

A request's tokens are a function of weights, context, seed and temperature; the other requests of a
batch and the length of slices change logits only by float rounding, and not even that while no row is refilled.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rollcast.policy.config import ModelConfig
from rollcast.policy.model import Decoder
from rollcast.policy.noise import seed_words
from rollcast.policy.params import Params, bind
from rollcast.policy.sampling.adapter_slots import choose
from rollcast.policy.sampling.decoding import Controls, Slice, decode_slice
from rollcast.policy.sampling.generation import Completion, Generation, SampleRequest
from rollcast.policy.sampling.kv_cache import Pages, copy_pages, empty_pages, extend, page_shapes
from rollcast.policy.sampling.page_pool import PagePool
from rollcast.wire.limits import STOP_TOKENS_MAX
from rollcast.wire.rollouts import Sampling
from rollcast.wire.text.stop_strings import Decode

__all__ = ["PAGE_TOKENS", "Completion", "Generation", "SampleRequest", "Sampler"]

# The most tokens that one slice samples for a row; the arrays fetched from the device after each slice have this size.
SLICE_TOKENS_MAX = 256
# The lengths that pieces of prompts are padded to, so that few shapes are compiled, and the number of prompt tokens
# that one call reads.
LENGTH_BUCKETS = (16, 64, 256)
EXTEND_TOKENS = 512
# The tokens of a page. Small pages waste less, half a page per sequence on average; gathers copy more at a time with
# large ones.
PAGE_TOKENS = 16


class Sampler:
    """A sampler of completions, ``batch_size`` at a time.

    Args:
        cache_tokens: memory for keys and values, in tokens; 0 means enough for batch_size sequences of the greatest
            length.
        record_routes: whether completions have the routes of the tokens that were read; the model then needs experts.
        adapter_slots: versions of adapters that rows may have at once; above 1, parameters come from side_by_side.
        mesh: the devices among which parameters lie as rollcast.policy.mesh says, and the cache by heads; None: one.
    """

    def __init__(
        self,
        config: ModelConfig,
        prompt_tokens_max: int,
        new_tokens_max: int,
        batch_size: int,
        cache_tokens: int = 0,
        *,
        record_routes: bool = False,
        adapter_slots: int = 1,
        mesh: Mesh | None = None,
    ) -> None:
        if record_routes and not config.experts:
            raise ValueError("record_routes needs a model with experts")
        self.config = config
        self.record_routes = record_routes
        self.adapter_slots = adapter_slots
        self._mesh = mesh
        self.batch_size = batch_size
        self.new_tokens_max = new_tokens_max
        self.table_pages = -(-(prompt_tokens_max + new_tokens_max) // PAGE_TOKENS)
        self.slice_steps = min(new_tokens_max, SLICE_TOKENS_MAX)
        self._prompt_tokens_max = prompt_tokens_max
        self._pages = -(-cache_tokens // PAGE_TOKENS) or batch_size * (self.table_pages + 1)
        self.extend = jax.jit(self._extend_rows, donate_argnums=1)
        self.copy = jax.jit(copy_pages, donate_argnums=0)
        self.decode = jax.jit(self._decode_slice, donate_argnums=1)

    def generate(
        self, params: Params, requests: Sequence[SampleRequest], sampling: Sampling, greedy: bool = False
    ) -> list[Completion]:
        """Generate one completion per request, in order.

        With ``greedy`` the likeliest token is taken; log-probabilities are still those at the temperature.

        Raises:
            ValueError: a request or the sampling parameters do not fit the shapes given to the constructor.
            CacheTooSmall: a request needs more than the whole cache.
        """
        generation = self.begin(params, requests, sampling, greedy)
        pieces: list[list[Completion]] = [[] for _ in requests]
        while not generation.finished:
            for number, piece in generation.generate(self.new_tokens_max).items():
                pieces[number].append(piece)
        return [_joined(made) for made in pieces]

    def begin(
        self,
        params: Params,
        requests: Sequence[SampleRequest],
        sampling: Sampling,
        greedy: bool = False,
        decode: Decode | None = None,
    ) -> Generation:
        """Begin a generation that advances a slice at a time; see ``generate`` for arguments and errors.

        Nothing is computed yet. ``decode`` is the tokenizer's, needed where there are stop strings.
        """
        generation = Generation(self, params, sampling, greedy, decode)
        generation.add(requests)
        return generation

    def compile(self, params: Params) -> None:
        """Compile every form that any request can need, for parameters like these."""
        generation = self.begin(params, [SampleRequest((0,), seed=0)], Sampling(1.0, 1, ()))
        generation.touch()
        generation.generate(1)

    def new_pool(self) -> PagePool:
        """Return the bookkeeping of an empty cache: which sequence owns which page."""
        return PagePool(self._pages, PAGE_TOKENS)

    def new_pages(self) -> Pages:
        """Allocate the memory of the cache."""
        return empty_pages(self.config, self._pages + 1, PAGE_TOKENS, self._mesh)

    def page_shapes(self) -> tuple[Pages, NamedSharding | None]:
        """Return what page_shapes of kv_cache does for the cache's memory."""
        return page_shapes(self.config, self._pages + 1, PAGE_TOKENS, self._mesh)

    def buckets(self) -> tuple[int, ...]:
        """Return the padded lengths of pieces: as many of LENGTH_BUCKETS as the longest prompt needs."""
        needed = [bucket for bucket in LENGTH_BUCKETS if bucket < self._prompt_tokens_max - 1]
        return LENGTH_BUCKETS[: len(needed) + 1]

    def rows_at_once(self, bucket: int) -> int:
        """Return how many pieces of this padded length are read at once."""
        return max(1, min(self.batch_size, EXTEND_TOKENS // bucket))

    def compiled_forms(self) -> tuple[int, int]:
        """Return how many forms of extend and of decode have been compiled so far."""
        return self.extend._cache_size(), self.decode._cache_size()

    def check(self, request: SampleRequest, sampling: Sampling) -> None:
        """Check that a request fits the compiled shapes; see ``generate`` for the errors."""
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
        seed_words(request.seed)

    def _extend_rows(
        self,
        params: Params,
        pages: Pages,
        tables: jax.Array,
        tokens: jax.Array,
        starts: jax.Array,
        counts: jax.Array,
        adapters: jax.Array,
    ) -> tuple[Pages, jax.Array | None]:
        model = self._bound(params, adapters)
        hidden, pages = extend(model, pages, tables, tokens, starts, counts, self._mesh)
        return pages, hidden.routed.routes if self.record_routes and hidden.routed is not None else None

    def _decode_slice(
        self, params: Params, pages: Pages, controls: Controls, limit: jax.Array, floor: jax.Array
    ) -> tuple[Slice, Pages]:
        model = self._bound(params, controls.adapters)
        routes, steps = self.record_routes, self.slice_steps
        return decode_slice(model, pages, controls, steps, limit, floor, record_routes=routes, mesh=self._mesh)

    def _bound(self, params: Params, adapters: jax.Array) -> Decoder:
        """Return the model that computes each row with the adapters of its slot, i32 [rows]."""
        model = bind(self.config, params)
        if self.adapter_slots > 1:
            choose(model, self.adapter_slots, adapters)
        return model


def _joined(pieces: list[Completion]) -> Completion:
    tokens = tuple(token for piece in pieces for token in piece.token_ids)
    return Completion(
        tokens,
        tuple(value for piece in pieces for value in piece.logprobs),
        pieces[-1].finish_reason,
        None if pieces[0].routes is None else np.concatenate([piece.routes for piece in pieces]),
        pieces[0].context_routes,
    )
