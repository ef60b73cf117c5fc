"""Check what every engine must do. Subclasses make an engine, and versions of one model with different weights."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

import pytest

from peer.engines.base import CompletionSlice, Engine, GenerateRequest, Generation, VersionState, WarmUp
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord

STOP_TOKEN = 1
SAMPLING = Sampling(temperature=1.0, max_new_tokens=6, stop_token_ids=(STOP_TOKEN,))
RANDOM_DRAWS = 600
FAKE_TOKENS = 30  # tokens that an engine without a model draws from, all alike
COOL = Sampling(temperature=0.5, max_new_tokens=4, stop_token_ids=(STOP_TOKEN,))


def requests(count: int, *, first_seed: int = 0, sampling: Sampling = SAMPLING) -> list[GenerateRequest]:
    return [GenerateRequest((5, 6, 7 + index % 3), first_seed + index, sampling) for index in range(count)]


def letters(ids: Sequence[int]) -> str:
    """Return a text with one letter for each token."""
    return "".join(chr(ord("a") + token) for token in ids)


async def complete(
    generation: Generation, count: int, slice_tokens: int = 100, ended: Collection[int] = ()
) -> list[list[CompletionSlice]]:
    """Return the slices of each of ``count`` requests until all have ended; ``ended`` have ended before."""
    pieces: list[list[CompletionSlice]] = [[] for _ in range(count)]
    going = set(range(count)) - set(ended)
    while going:
        for new in await generation.next_slice(slice_tokens):
            assert 1 <= len(new.token_ids) == len(new.logprobs) <= slice_tokens
            assert new.request in going
            pieces[new.request].append(new)
            if new.finish_reason is not None:
                going.discard(new.request)
    return pieces


async def generate(engine: Engine, asked: Sequence[GenerateRequest], slice_tokens: int = 100) -> list[CompletionSlice]:
    """Return one whole completion for each request."""
    made = []
    for pieces in await complete(engine.begin(asked), len(asked), slice_tokens):
        made.append(joined(pieces))
    return made


def joined(pieces: Sequence[CompletionSlice]) -> CompletionSlice:
    """Join the pieces of one completion."""
    tokens = tuple(token for piece in pieces for token in piece.token_ids)
    logprobs = tuple(logprob for piece in pieces for logprob in piece.logprobs)
    return replace(pieces[-1], token_ids=tokens, logprobs=logprobs)


async def check_that_rollouts_finish(
    engine: Engine, versions: Sequence[VersionState], expected: Sequence[Sequence[CompletionSlice]], new_tokens: int
) -> None:
    """Check an engine that has rollouts of two versions at once: each ends under the one with which it began.

    Args:
        versions: three.
        expected: of each version the completions of ``requests(2)`` with so many tokens.
    """
    asked = requests(2, sampling=Sampling(1.0, new_tokens, ()))
    engine.expect(WarmUp(prompt_tokens_max=16, sampling=asked[0].sampling, at_version_swap="finish"))
    await activated(engine, versions[0])
    generation = engine.begin(asked)
    pieces: dict[int, list[CompletionSlice]] = {number: [] for number in range(6)}
    slice_tokens = new_tokens // 3

    async def generate_more() -> None:
        for new in await generation.next_slice(slice_tokens):
            pieces[new.request].append(new)

    await generate_more()
    assert generation.versions_free == 1
    await activated(engine, versions[1])
    generation.renew("finish")
    generation.add(asked)  # the same prompts, whose keys and values differ
    await generate_more()
    assert [pieces[number][-1].version for number in range(4)] == [versions[0].record.version] * 2 + [
        versions[1].record.version
    ] * 2
    assert generation.versions_free == 0
    with pytest.raises(ValueError, match="room"):
        generation.renew("finish")
    while any(pieces[number][-1].finish_reason is None for number in range(2)):
        await generate_more()
    await activated(engine, versions[2])
    generation.renew("finish")
    generation.add(asked)
    while not all(pieces[number] and pieces[number][-1].finish_reason for number in range(6)):
        await generate_more()
    for number, made in pieces.items():
        alone = expected[number // 2][number % 2]
        assert {piece.version for piece in made} == {alone.version}
        assert joined(made).token_ids == alone.token_ids
        assert joined(made).logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert generation.versions_free == 2


async def activated(engine: Engine, version: VersionState) -> None:
    """Load a version and make it active."""
    assert await engine.load(version) == version.record.state_hash
    await engine.activate(version.record.version)


class EngineConformance:
    """The tests that every engine must pass."""

    knows_its_logprobs = True
    """Whether what it reports are the probabilities that it draws with; an engine without a model does not."""

    samples_ahead = False
    """Whether tokens that it sampled before a swap may come after it, where rollouts keep their keys and values."""

    @abstractmethod
    def make_engine(self) -> Engine:
        """Return an engine with 4 concurrent rollouts."""

    @abstractmethod
    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        """Return a record and its state; other versions have other weights."""

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        engine = self.make_engine()
        yield engine
        await engine.close()

    async def put(self, engine: Engine, version: int) -> None:
        record, state = self.make_version(version)
        await engine.load(VersionState(record, memoryview(state)))
        await engine.activate(record.version)

    async def test_loaded_weights_hash_to_the_signed_state(self, engine: Engine) -> None:
        for version in (0, 1):
            record, state = self.make_version(version)
            assert await engine.load(VersionState(record, memoryview(state))) == record.state_hash

    async def test_a_changed_state_is_seen_in_the_hash(self, engine: Engine) -> None:
        record, state = self.make_version(0)
        changed = bytes([state[0] ^ 1]) + state[1:]
        assert await engine.load(VersionState(record, memoryview(changed))) != record.state_hash

    async def test_nothing_is_generated_before_a_version_is_active(self, engine: Engine) -> None:
        assert engine.active_version is None
        with pytest.raises(ValueError, match="no version is active"):
            engine.begin(requests(1))
        record, state = self.make_version(0)
        await engine.load(VersionState(record, memoryview(state)))
        assert engine.active_version is None

    async def test_only_a_loaded_and_newer_version_becomes_active(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="not loaded"):
            await engine.activate(Version(0))
        await self.put(engine, 1)
        record, state = self.make_version(0)
        await engine.load(VersionState(record, memoryview(state)))
        with pytest.raises(ValueError, match="not newer"):
            await engine.activate(Version(0))
        assert engine.active_version == 1

    async def test_the_exchange_of_weights_is_described(self, engine: Engine) -> None:
        for version in (0, 1):
            await self.put(engine, version)
            await generate(engine, requests(1))  # an engine may exchange them only when it next generates
            swap = engine.last_swap
            assert swap is not None
            assert swap.version == version
            assert swap.moved_bytes > 0
            assert swap.paused_s >= 0.0
            placement = engine.placement
            assert placement is None or (placement.devices >= 1 and placement.versions in (1, 2))

    async def test_a_seed_samples_the_same_tokens_in_any_batch(self, engine: Engine) -> None:
        await self.put(engine, 0)
        together = await generate(engine, requests(4))
        alone = await generate(engine, requests(4)[2:3])
        again = await generate(engine, requests(4))
        assert [item.token_ids for item in again] == [item.token_ids for item in together]
        assert alone[0].token_ids == together[2].token_ids

    async def test_other_seeds_and_other_weights_sample_other_tokens(self, engine: Engine) -> None:
        await self.put(engine, 0)
        drawn = [item.token_ids for item in await generate(engine, requests(4))]
        assert [item.token_ids for item in await generate(engine, requests(4, first_seed=100))] != drawn
        await self.put(engine, 1)
        assert [item.token_ids for item in await generate(engine, requests(4))] != drawn

    async def test_rollouts_are_well_formed(self, engine: Engine) -> None:
        await self.put(engine, 3)
        for item in await generate(engine, requests(4) + requests(4, first_seed=50)):
            assert (item.version, item.epoch) == (3, 0)
            assert 1 <= len(item.token_ids) <= SAMPLING.max_new_tokens
            assert len(item.logprobs) == len(item.token_ids)
            assert all(logprob <= 0.0 for logprob in item.logprobs)
            assert STOP_TOKEN not in item.token_ids[:-1]
            stopped = item.token_ids[-1] == STOP_TOKEN
            assert item.finish_reason == ("stop" if stopped else "length")
            assert stopped or len(item.token_ids) == SAMPLING.max_new_tokens

    async def test_requests_with_other_sampling_share_a_call_and_keep_their_order(self, engine: Engine) -> None:
        await self.put(engine, 0)
        mixed = [requests(1)[0], requests(1, sampling=COOL)[0], requests(1, first_seed=9)[0]]
        drawn = await generate(engine, mixed)
        for request, item in zip(mixed, drawn, strict=True):
            assert (await generate(engine, [request]))[0].token_ids == item.token_ids
            assert len(item.token_ids) <= request.sampling.max_new_tokens

    async def test_slices_change_nothing(self, engine: Engine) -> None:
        await self.put(engine, 0)
        whole = await generate(engine, requests(6))
        for slice_tokens in (1, 2, 5):
            sliced = await generate(engine, requests(6), slice_tokens)
            assert [item.token_ids for item in sliced] == [item.token_ids for item in whole]
            for one, other in zip(sliced, whole, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)

    async def test_a_renewed_generation_continues_with_the_new_weights(self, engine: Engine) -> None:
        await self.put(engine, 0)
        generation = engine.begin(requests(4))
        begun = await generation.next_slice(2)
        await self.put(engine, 1)
        generation.renew()
        rest = await complete(generation, 4, ended={new.request for new in begun if new.finish_reason is not None})
        assert any(rest)
        first_of = {new.request: new for new in begun}
        for index, (request, pieces) in enumerate(zip(requests(4), rest, strict=True)):
            first = first_of[index]
            assert (first.version, {piece.version for piece in pieces}) == (0, {1} if pieces else set())
            if pieces:
                (expected,) = await generate(engine, [replace(request, already_generated=first.token_ids)])
                assert pieces[0].token_ids == expected.token_ids

    async def test_keys_and_values_are_kept_for_rollouts_in_progress_only(self, engine: Engine) -> None:
        await self.put(engine, 0)
        generation = engine.begin(requests(2))
        begun = await generation.next_slice(2)
        await self.put(engine, 1)
        generation.renew("keep")
        generation.add(requests(2))  # the same prompts
        ended = {new.request for new in begun if new.finish_reason is not None}
        rest = await complete(generation, 4, ended=ended)
        for pieces in rest[:2]:
            versions = [piece.version for piece in pieces]
            assert versions == sorted(versions)
            assert set(versions) <= ({0, 1} if self.samples_ahead else {1})
        assert {piece.version for pieces in rest[2:] for piece in pieces} == {1}
        expected = [item.token_ids for item in await generate(engine, requests(2))]
        assert [joined(pieces).token_ids for pieces in rest[2:]] == expected

    async def test_a_generation_renewed_before_its_first_slice_is_of_the_new_version(self, engine: Engine) -> None:
        await self.put(engine, 0)
        generation = engine.begin(requests(2))
        await self.put(engine, 1)
        generation.renew()
        expected = await generate(engine, requests(2))
        made = [joined(pieces) for pieces in await complete(generation, 2)]
        assert [(one.version, one.token_ids) for one in made] == [(1, one.token_ids) for one in expected]

    async def test_a_completion_with_no_token_left_to_generate_is_refused(self, engine: Engine) -> None:
        await self.put(engine, 0)
        with pytest.raises(ValueError, match="no token left"):
            engine.begin([GenerateRequest((5, 6), 1, SAMPLING, already_generated=(9,) * SAMPLING.max_new_tokens)])

    async def test_a_completion_can_be_continued(self, engine: Engine) -> None:
        await self.put(engine, 0)
        begun = GenerateRequest((5, 6, 7), 3, SAMPLING, already_generated=(9, 8))
        (item,) = await generate(engine, [begun])
        assert 1 <= len(item.token_ids) <= SAMPLING.max_new_tokens - 2

    async def test_added_requests_are_generated_as_if_present_from_the_start(self, engine: Engine) -> None:
        await self.put(engine, 0)
        generation = engine.begin(requests(2))
        first = await generation.next_slice(1)
        generation.add(requests(9)[2:])
        ended = {new.request for new in first if new.finish_reason is not None}
        pieces = await complete(generation, 9, 2, ended)
        for new in first:
            pieces[new.request].insert(0, new)
        whole = await generate(engine, requests(9))
        assert [joined(made).token_ids for made in pieces] == [item.token_ids for item in whole]

    async def test_sampling_is_random_with_the_models_probabilities(self, engine: Engine) -> None:
        """Find an engine that takes the likeliest token, or has another temperature, by its own log-probabilities."""
        await self.put(engine, 0)
        one = Sampling(temperature=1.0, max_new_tokens=1, stop_token_ids=())
        drawn = await generate(engine, [GenerateRequest((5, 6, 7), seed, one) for seed in range(RANDOM_DRAWS)])
        counts = Counter(item.token_ids[0] for item in drawn)
        shares = {item.token_ids[0]: math.exp(item.logprobs[0]) for item in drawn}
        for token, count in counts.items():
            expected = shares[token] if self.knows_its_logprobs else 1.0 / FAKE_TOKENS
            deviation = math.sqrt(expected * (1.0 - expected) / RANDOM_DRAWS)
            assert abs(count / RANDOM_DRAWS - expected) < 6.0 * deviation + 1e-3

    async def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it(self, engine: Engine) -> None:
        engine.expect(WarmUp(prompt_tokens_max=16, sampling=SAMPLING, decode=letters))
        await self.put(engine, 0)
        for whole in await generate(engine, requests(6)):
            text = letters(whole.token_ids)
            for strings in ((text[1:3] or text,), ("nowhere", text[-1])):
                sampling = replace(SAMPLING, stop_strings=strings)
                asked = [replace(one, sampling=sampling) for one in requests(6)][whole.request]
                end = min(text.find(one) + len(one) for one in strings if one in text)
                for slice_tokens in (1, 4):
                    (item,) = await generate(engine, [asked], slice_tokens)
                    assert item.token_ids == whole.token_ids[:end]
                    assert len(item.logprobs) == end
                    assert item.finish_reason == "stop"

    async def test_stop_strings_without_a_tokenizer_are_refused(self, engine: Engine) -> None:
        await self.put(engine, 0)
        with pytest.raises(ValueError, match="tokenizer"):
            engine.begin(requests(1, sampling=replace(SAMPLING, stop_strings=("x",))))

    async def test_a_batch_is_of_one_version_although_the_next_is_loaded_meanwhile(self, engine: Engine) -> None:
        await self.put(engine, 0)
        expected = [item.token_ids for item in await generate(engine, requests(12))]
        record, state = self.make_version(1)
        batch = asyncio.create_task(generate(engine, requests(12)))
        await asyncio.sleep(0)
        await engine.load(VersionState(record, memoryview(state)))
        await engine.activate(record.version)
        drawn = await batch
        assert {item.version for item in drawn} == {0}
        assert [item.token_ids for item in drawn] == expected
        assert {item.version for item in await generate(engine, requests(2))} == {1}

    async def test_announced_work_is_done(self, engine: Engine) -> None:
        engine.expect(WarmUp(prompt_tokens_max=16, sampling=Sampling(1.0, 16, (STOP_TOKEN,))))
        await self.put(engine, 0)
        assert len(await generate(engine, requests(4))) == 4

    async def test_work_longer_than_announced_is_done_too(self, engine: Engine) -> None:
        engine.expect(WarmUp(prompt_tokens_max=16, sampling=Sampling(1.0, 16, (STOP_TOKEN,))))
        await self.put(engine, 0)
        assert len(await generate(engine, [GenerateRequest((5,) * 17, 1, SAMPLING)])) == 1


class RefusesNonsense:
    """Tests of engines that parse the state."""

    async def test_a_state_of_another_model_is_refused(self, engine: Engine) -> None:
        record, state = self.make_version(0)  # type: ignore[attr-defined]
        with pytest.raises(MalformedMessage):
            await engine.load(VersionState(record, memoryview(state[:-4])))
