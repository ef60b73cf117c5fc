"""Keep the requests in progress: the row of each, its tokens so far, and the inputs of each slice on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.noise import seed_words
from rollcast.policy.params import Params
from rollcast.policy.sampling.decoding import Controls, stop_row
from rollcast.policy.sampling.kv_cache import Pages
from rollcast.policy.sampling.page_pool import NULL_PAGE, PagePool, Reservation
from rollcast.wire.rollouts import FinishReason, Sampling
from rollcast.wire.text.stop_strings import Decode, StopStrings, stop_strings
from rollcast.wire.version_swap import AtVersionSwap

#: Routes of some tokens, [tokens, layers, experts_per_token]; see rollcast.wire.routes.
Routes = np.ndarray[Any, Any]

# While requests wait for a row, a slice ends once this share of the rows has ended.
_REFILL_SHARE = 8


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A completion to generate.

    ``already_generated``: its first tokens, generated earlier, perhaps by another peer. ``earlier_turns``
    of them belong to earlier turns of an episode, in which no stop string is sought.
    """

    prompt_token_ids: tuple[int, ...]
    seed: int  # unsigned, 64 bits
    already_generated: tuple[int, ...] = ()
    sampling: Sampling | None = None  # None: the sampling parameters of the generation
    earlier_turns: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """The new tokens of a request and log p of each at the temperature.

    The stop token is included, ``already_generated`` is not.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None  # None while it is unfinished
    routes: Routes | None = field(default=None, compare=False)
    """The experts used for the token before each new one, most probable first, [new tokens, layers, experts_per_token]
    in the dtype of ModelConfig.route_shape; None if the sampler does not record them. No token follows the last one, so
    nothing is recorded for it."""
    context_routes: Routes | None = field(default=None, compare=False)
    """The same for the tokens before those, which are all of the prompt and of ``already_generated`` but the last one;
    None in later pieces of a request."""
    slot: int = field(default=0, compare=False)
    """The slot of the adapters that generated it."""


@dataclass(slots=True)
class _Sequence:
    """One request. Its context is prompt + tokens; all of it but the last token is in its pages."""

    number: int
    request: SampleRequest
    sampling: Sampling
    tokens: list[int]
    finish_reason: FinishReason | None = None
    stop: StopStrings | None = None
    pages: Reservation | None = None
    table: tuple[int, ...] = ()
    read: list[_Read] = field(default_factory=list)  # what was read after the shared part of the prompt
    is_begun: bool = False  # whether a piece of it was returned
    slot: int = 0  # of its adapters

    @property
    def prompt(self) -> tuple[int, ...]:
        """Return the part of the prompt that rows share: all but the last token, which each row reads itself."""
        return self.request.prompt_token_ids[:-1]

    @property
    def prompt_last(self) -> int:
        """Return the prompt's last token."""
        return self.request.prompt_token_ids[-1]

    @property
    def left(self) -> int:
        """Return how many tokens may still be generated."""
        return self.sampling.max_new_tokens - len(self.tokens)


@dataclass(frozen=True, slots=True)
class _Read:
    """The routes of tokens as they were read: the first ``count`` of a row of an array on the device."""

    routes: Any  # [rows, time, layers, experts_per_token]
    row: int
    count: int

    def fetched(self) -> Routes:
        """Return the routes [count, layers, experts_per_token] on the host."""
        return np.asarray(self.routes[self.row, : self.count])


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens to be read after the first ``start`` tokens, which are in the pages; ``read`` takes their routes."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]
    read: list[_Read]
    slot: int = 0


class Device(Protocol):
    """The compiled stages and shapes that generation runs with, which ``Sampler`` provides.

    Attributes:
        batch_size: rows of a slice.
        slice_steps: most tokens that a slice generates for a row.
        table_pages: pages of the longest context.
        config: the model's architecture.
        record_routes: whether completions have their routes.
        adapter_slots: versions of adapters that rows may have at once.
        extend, copy, decode: the compiled stages; each returns the pages that it was given, changed.
    """

    config: ModelConfig
    batch_size: int
    record_routes: bool
    adapter_slots: int
    slice_steps: int
    table_pages: int
    extend: Any
    copy: Any
    decode: Any

    def new_pool(self) -> PagePool: ...
    def new_pages(self) -> Pages: ...
    def buckets(self) -> tuple[int, ...]: ...
    def rows_at_once(self, bucket: int) -> int: ...
    def check(self, request: SampleRequest, sampling: Sampling) -> None: ...


class Generation:
    """Completions in progress, made by ``Sampler.begin``. Their keys and values stay on the device between slices."""

    def __init__(
        self, sampler: Device, params: Params, sampling: Sampling, greedy: bool, decode: Decode | None
    ) -> None:
        self._sampler = sampler
        self._decode = decode
        self._params = params
        self._slot = 0  # of the sequences that begin
        self._sampling = sampling
        self._noise_scale = np.float32(0.0 if greedy else 1.0)
        self._pool = sampler.new_pool()
        self._pages: Pages | None = None
        self._asked = 0
        self._waiting: deque[_Sequence] = deque()
        self._rows: list[_Sequence | None] = [None] * sampler.batch_size

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return not self._waiting and not any(self._rows)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        """Queue more requests; they begin as rows and pages become free.

        Raises:
            ValueError, CacheTooSmall: see Sampler.generate; none of the requests is added.
        """
        new = [
            _Sequence(self._asked + index, item, item.sampling or self._sampling, list(item.already_generated))
            for index, item in enumerate(requests)
        ]
        for item in new:
            self._sampler.check(item.request, item.sampling)
            self._pool.require(self._tokens_max(item))
            item.stop = stop_strings(item.sampling, self._decode, item.request.earlier_turns)
        self._asked += len(new)
        self._waiting += new

    def generate(self, tokens_max: int) -> dict[int, Completion]:
        """Generate up to ``tokens_max`` tokens for every request that has a row.

        Returns:
            The new tokens by request number, which counts requests in the order in which they were added. The end of
            each request is returned once.
        """
        self._admit()
        news: dict[int, Completion] = {}
        if any(self._rows):
            steps = min(tokens_max, self._sampler.slice_steps)
            made, self._pages = self._sampler.decode(
                self._params, self._allocated_pages(), self._controls(), np.int32(steps), np.int32(self._floor())
            )
            made = jax.device_get(made)
            for row, item in enumerate(self._rows):
                if item is not None:
                    count = int(made.counts[row])
                    routes = None if made.routes is None else made.routes[:count, row]
                    new = made.tokens[:count, row].tolist(), made.logprobs[:count, row].tolist(), routes
                    news[item.number] = self._take_in(row, item, *new)
        return news

    @property
    def free_slots(self) -> list[int]:
        """Return the slots of adapters with which no sequence in progress computes."""
        used = {item.slot for item in self._rows if item is not None}
        return [slot for slot in range(self._sampler.adapter_slots) if slot not in used]

    def renew(self, params: Params, mode: AtVersionSwap = "continue", slot: int = 0) -> None:
        """Continue with these weights, which read the tokens so far again, unless their keys and values are kept.

        Args:
            mode: with "finish", sequences in progress compute with the adapters of their slots to their ends.
            slot: of the adapters with which all others compute.
        """
        self._params, self._slot = params, slot
        if mode != "continue":
            self._pool.share_no_more()  # a sequence that begins under these weights reads its prompt with them
        if mode == "finish":
            return
        running = [item for item in self._rows if item is not None]
        for item in running:
            item.slot = slot
        if mode == "keep":
            return
        prompts = {id(item.pages.prompt): item for item in running if item.pages is not None}
        self._fill(running, list(prompts.values()))

    def touch(self) -> None:
        """Run the stages that fill pages once for each of their shapes, on the unused page, so that they are
        compiled."""
        self._copy([(NULL_PAGE, NULL_PAGE)])
        for bucket in self._sampler.buckets():
            self._extend([_Piece((0,), 0, (NULL_PAGE,), [])], bucket)

    # ---------------------------------------------------------------- rows and pages

    def _allocated_pages(self) -> Pages:
        """Return the pages, which are allocated on first use."""
        if self._pages is None:
            self._pages = self._sampler.new_pages()
        return self._pages

    def _tokens_max(self, item: _Sequence) -> int:
        return len(item.request.prompt_token_ids) + item.sampling.max_new_tokens

    def _admit(self) -> None:
        """Give waiting requests free rows, in their order, as long as there are pages for the next."""
        new: list[_Sequence] = []
        for row, sequence in enumerate(self._rows):
            if sequence is not None or not self._waiting:
                continue
            item = self._waiting[0]
            item.pages = self._pool.reserve(item.prompt, self._tokens_max(item))
            if item.pages is None:
                break
            self._waiting.popleft()
            self._rows[row], item.slot = item, self._slot
            new.append(item)
            item.table = item.pages.table(len(item.prompt) // self._pool.page_tokens)
        if new:
            self._fill(new, [item for item in new if item.pages is not None and item.pages.first])

    def _fill(self, sequences: list[_Sequence], prompts: list[_Sequence]) -> None:
        """Read the prompts of ``prompts``, then what each sequence has beyond its prompt's last whole page."""
        shared = [(item, item.pages.prompt) for item in prompts if item.pages is not None]
        for read in [prompt.records for _, prompt in shared] + [item.read for item in sequences]:
            read.clear()
        self._read([_Piece(one.prompt, 0, prompt.pages, prompt.records, one.slot) for one, prompt in shared])
        self._copy([item.pages.copy for item in sequences if item.pages is not None and item.pages.copy is not None])
        self._read(
            [
                _Piece([item.prompt_last, *item.tokens[:-1]], len(item.prompt), item.table, item.read, item.slot)
                for item in sequences
                if item.tokens
            ]
        )

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        rows = self._sampler.batch_size
        for start in range(0, len(pairs), rows):
            both = np.full((rows, 2), NULL_PAGE, np.int32)
            both[: len(pairs[start : start + rows])] = pairs[start : start + rows]
            self._pages = self._sampler.copy(self._allocated_pages(), both[:, 0], both[:, 1])

    def _read(self, pieces: list[_Piece]) -> None:
        """Read pieces of any length, a round of equally long parts at a time."""
        buckets = self._sampler.buckets()
        while pieces := [piece for piece in pieces if piece.tokens]:
            longest = max(len(piece.tokens) for piece in pieces)
            bucket = next((bucket for bucket in buckets if bucket >= longest), buckets[-1])
            for part in _split(pieces, self._sampler.rows_at_once(bucket)):
                self._extend(part, bucket)
            pieces = [replace(piece, tokens=piece.tokens[bucket:], start=piece.start + bucket) for piece in pieces]

    def _extend(self, pieces: Sequence[_Piece], bucket: int) -> None:
        rows = self._sampler.rows_at_once(bucket)
        tables = np.full((rows, self._sampler.table_pages), NULL_PAGE, np.int32)
        tokens = np.zeros((rows, bucket), np.int32)
        starts, counts, adapters = np.zeros((3, rows), np.int32)
        for row, piece in enumerate(pieces):
            counts[row] = min(len(piece.tokens), bucket)
            tables[row, : len(piece.table)] = piece.table
            tokens[row, : counts[row]] = piece.tokens[:bucket]
            starts[row], adapters[row] = piece.start, piece.slot
        self._pages, routes = self._sampler.extend(
            self._params, self._allocated_pages(), tables, tokens, starts, counts, adapters
        )
        if routes is not None:
            for row, piece in enumerate(pieces):
                piece.read.append(_Read(routes, row, int(counts[row])))

    # ---------------------------------------------------------------- slices

    def _floor(self) -> int:
        """Return the number of running rows at which a slice ends, so that waiting requests get the free rows."""
        running = sum(item is not None for item in self._rows)
        return running - max(1, running // _REFILL_SHARE) if self._waiting else 0

    def _controls(self) -> Controls:
        rows = len(self._rows)
        controls = Controls(
            tables=np.full((rows, self._sampler.table_pages), NULL_PAGE, np.int32),
            starts=np.zeros(rows, np.int32),
            last=np.zeros(rows, np.int32),
            budgets=np.zeros(rows, np.int32),
            seeds=np.zeros((rows, 2), np.uint32),
            stop_tokens=np.tile(np.array(stop_row(()), np.int32), (rows, 1)),
            temperatures=np.ones(rows, np.float32),
            adapters=np.zeros(rows, np.int32),
            noise_scale=self._noise_scale,
        )
        for row, item in enumerate(self._rows):
            if item is not None:
                controls.tables[row, : len(item.table)] = item.table
                controls.starts[row] = len(item.prompt) + len(item.tokens)
                controls.last[row] = item.tokens[-1] if item.tokens else item.prompt_last
                controls.budgets[row] = item.left
                controls.seeds[row] = seed_words(item.request.seed)
                controls.stop_tokens[row] = stop_row(item.sampling.stop_token_ids)
                controls.temperatures[row] = item.sampling.temperature
                controls.adapters[row] = item.slot
        return controls

    def _take_in(
        self, row: int, item: _Sequence, tokens: list[int], logprobs: list[float], routes: Routes | None
    ) -> Completion:
        context_routes = self._context_routes(item)
        known = len(item.tokens)
        item.tokens += tokens
        end = item.stop.end(item.tokens, known) if item.stop is not None else None
        if end is not None:  # tokens generated after the stop string are discarded
            del item.tokens[end:], tokens[end - known :], logprobs[end - known :]
        if end is not None or (tokens and tokens[-1] in item.sampling.stop_token_ids):
            item.finish_reason = "stop"
        elif not item.left:
            item.finish_reason = "length"
        if item.finish_reason is not None and item.pages is not None:
            self._pool.release(item.pages)
            self._rows[row] = item.pages = None
        kept = None if routes is None else routes[: len(tokens)]
        return Completion(tuple(tokens), tuple(logprobs), item.finish_reason, kept, context_routes, item.slot)

    def _context_routes(self, item: _Sequence) -> Routes | None:
        """Return the routes of the tokens that a sequence began with, for its first piece only."""
        if not self._sampler.record_routes or item.is_begun or item.pages is None:
            return None
        item.is_begun = True
        parts = [read.fetched() for read in (*item.pages.prompt.records, *item.read)]
        item.read.clear()
        one = self._sampler.config.route_shape
        return np.concatenate([np.zeros((0, one.layers, one.experts_per_token), one.dtype), *parts])


def _split(pieces: list[_Piece], most: int) -> Iterator[list[_Piece]]:
    for start in range(0, len(pieces), most):
        yield pieces[start : start + most]
