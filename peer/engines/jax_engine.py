"""The JAX rollout engine: the policy's sampler in one thread, and a second thread that loads the next version."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import structlog
from jax.sharding import Mesh

from peer.engines.base import CompletionSlice, GenerateRequest, Placement, Swap, VersionState, WarmUp, check_requests
from peer.engines.device_weights import DeviceRoom, DeviceWeights, VersionsOnDevice, read_back
from peer.engines.frozen_base import FrozenBase
from peer.engines.held_versions import HeldVersions, LoadedVersion
from rollcast.policy.compilation import MatmulPrecision, use_compilation_cache, use_matmul_precision
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.lora import absent_adapters
from rollcast.policy.mesh import engine_shardings, tensor_mesh
from rollcast.policy.params import Params
from rollcast.policy.sampling.adapter_slots import side_by_side
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.policy.sizing.computation import sampling_computation
from rollcast.policy.sizing.fitting import cache_that_fits
from rollcast.policy.sizing.memory import PeerShape, paged_tokens, peer_memory
from rollcast.policy.snapshot import views
from rollcast.runtime.errors import ConfigError, CorruptChunk
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.version_swap import AtVersionSwap

# Lengths without a warm-up are rounded up to a power of two from here, so that few shapes are ever compiled.
_LENGTH_MIN = 16
# Versions of adapters that generate at once where rollouts finish under theirs: one that ends and the next.
_ADAPTER_SLOTS = 2
# Compiled shapes kept; a run has one or two.
_SHAPES_MAX = 16
# A placeholder: every request brings its own sampling parameters.
_NO_SAMPLING = Sampling(1.0, 1, ())


_log = structlog.get_logger()

_Loaded = LoadedVersion[DeviceWeights]


class JaxEngine:
    """An Engine (peer.engines.base) on jax.

    Args:
        concurrent_rollouts: rows that are generated at a time.
        matmul_precision: precision of products of float32 matrices, for models with that carrier.
        compilation_cache: folder of jax's persistent compilation cache; None: jax's own setting holds.
        versions_on_device: see peer.config.EngineConfig.
        cache_tokens: size of the key-value cache in tokens; 0: enough for all rows at the greatest length, as far as
            the device has room.
        devices: how many of the devices that this process sees the model is divided among, the first ones; "all": all.
        memory_share: largest share of an accelerator's memory (0 to 1) that this process takes. It counts only if jax
            was not used before in this process; None: jax's default.
    """

    def __init__(
        self,
        *,
        concurrent_rollouts: int,
        compilation_cache: Path | None = None,
        matmul_precision: MatmulPrecision = "highest",
        versions_on_device: VersionsOnDevice = "auto",
        cache_tokens: int = 0,
        devices: int | Literal["all"] = "all",
        memory_share: float | None = None,
    ) -> None:
        if memory_share is not None:
            # docs.jax.dev/en/latest/gpu_memory_allocation.html; jax reads it when it looks for its first device.
            os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{memory_share:.3f}"
        use_compilation_cache(compilation_cache)
        self._matmul_precision = matmul_precision
        self._rows = concurrent_rollouts
        self._cache_tokens = cache_tokens
        self._devices_wanted = devices
        self._work: WarmUp | None = None
        self._held: HeldVersions[DeviceWeights] = HeldVersions()
        self._device = DeviceRoom(versions_on_device)
        self._frozen = FrozenBase(self._placed_base)
        self._compiled: set[Sampler] = set()
        self._last_swap: Swap | None = None
        self._placement: Placement | None = None
        self._cache_sizes: dict[tuple[ModelConfig, int], int] = {}

    def expect(self, work: WarmUp) -> None:
        """Announce the work for which later loads compile (see Engine.expect)."""
        self._work = work

    async def load(self, version: VersionState) -> bytes:
        """Put the weights on the device and compile (see Engine.load)."""
        return await self._held.load(functools.partial(self._load, version, self._work))

    async def activate(self, version: Version) -> None:
        """Make the loaded version active (see Engine.activate)."""
        self._held.activate(version)
        weights = self._held.require_active().weights
        if weights.on_device:  # otherwise the first slice with it copies it there
            self._last_swap = Swap(version, "keyframe", 0.0, weights.size_bytes, read_back=True)

    def begin(self, requests: Sequence[GenerateRequest]) -> JaxGeneration:
        """Start completions, as many at a time as there are rows (see Engine.begin)."""
        active = self._held.require_active()
        check_requests(requests)
        return JaxGeneration(self, active, tuple(requests))

    @property
    def hardware(self) -> str:
        """The release of jax, and the number and kind of the devices that it computes on."""
        kind, backend = jax.devices()[0].device_kind, jax.default_backend()
        device = "CPU" if kind == "cpu" else f"{kind} ({backend})"
        return f"jax {jax.__version__}, {device if self.devices == 1 else f'{self.devices} x {device}'}"

    @property
    def sampler(self) -> str:
        """The kind of device; "fast" if products of float32 matrices are less precise than the learner's."""
        return f"jax-{jax.default_backend()}" + ("" if self._matmul_precision == "highest" else "-fast")

    @property
    def devices(self) -> int:
        """How many devices the model is divided among.

        Raises:
            ConfigError: this process sees fewer than it is to use.
        """
        found = len(jax.devices())
        wanted = found if self._devices_wanted == "all" else self._devices_wanted
        if wanted > found:
            raise ConfigError(
                f"engine.devices is {wanted}, and this process sees {found}",
                cause="the machine has no more, or CUDA_VISIBLE_DEVICES or the like hides them",
                fix='set engine.devices to "all" or to a number that there is',
            )
        return wanted

    def computation(self, model: ModelConfig) -> str:
        """Return how a model is sampled here (see Engine.computation)."""
        two = self._device.holds_two(self._peak_bytes(model, self._work))
        return str(sampling_computation(model, self._matmul_precision, self.devices, two_versions=two))

    @property
    def active_version(self) -> Version | None:
        """The version with which the next generation starts; None: no version is active."""
        return self._held.active_version

    @property
    def last_swap(self) -> Swap | None:
        """The newest exchange of weights (see Engine.last_swap)."""
        return self._last_swap

    @property
    def placement(self) -> Placement | None:
        """Where the weights are (see Engine.placement)."""
        return self._placement

    async def close(self) -> None:
        """Free the weights; a slice that is still running ends in its thread."""
        self._held.close()

    def _load(self, version: VersionState, work: WarmUp | None) -> tuple[_Loaded, bytes]:
        record = version.record
        config = described_model(record)
        use_matmul_precision(self._matmul_precision, config.carrier_dtype)
        weights = self._host_weights(version, config)
        loaded = LoadedVersion(record.epoch, record.version, config, weights)
        peak_bytes = self._peak_bytes(config, work)
        holds_two = weights.base is not None or self._device.holds_two(peak_bytes)
        self._placement = Placement(self.devices, 2 if holds_two else 1)
        if weights.base is not None or self._device.takes_beside(peak_bytes):
            self._device.place(weights)
            if work is not None:
                self._compile(loaded, work)
        if weights.base is not None and version.base is None:
            return loaded, self._frozen.read_hash
        weights.staged_hash = read_back(weights.tensors)
        return loaded, weights.staged_hash

    def _host_weights(self, version: VersionState, config: ModelConfig) -> DeviceWeights:
        """Return a version's tensors in host memory; those of adapters over their base, which is on the device."""
        base = None if config.lora is None else self._frozen.load(version, config)
        if base is not None and version.base is None:
            tensors = absent_adapters(config)  # it runs in the program of the versions after it
        else:
            # A copy: the store may drop its file while the arrays still share the memory they came from.
            tensors = views(config, version.record.tensors, bytes(version.state))
        return DeviceWeights(tensors, base, self._where(config, tensors))

    def _placed_base(self, config: ModelConfig, tensors: Params) -> DeviceWeights:
        weights = DeviceWeights(tensors, where=self._where(config, tensors))
        self._device.place_base(weights)
        return weights

    def _where(self, config: ModelConfig, tensors: Params) -> Mapping[str, Any]:
        return {} if self._mesh is None else engine_shardings(self._mesh, config, tensors)

    def _peak_bytes(self, config: ModelConfig, work: WarmUp | None) -> int:
        """Return the bytes of the device that two versions and the expected work need."""
        tokens = _LENGTH_MIN if work is None else work.prompt_tokens_max + work.sampling.max_new_tokens
        return peer_memory(config, self._shape(tokens)).peak

    def _shape(self, row_tokens: int, versions: int = 2) -> PeerShape:
        return PeerShape(self._rows, row_tokens, self._cache_tokens, versions_on_device=versions, devices=self.devices)

    def _cache_for(self, config: ModelConfig, row_tokens: int) -> int:
        """Return the size of the cache in tokens for rows of this length; 0: for all rows, as nothing says the room."""
        memory_bytes = self._device.memory_bytes
        if self._cache_tokens or memory_bytes is None:
            return self._cache_tokens
        if (config, row_tokens) not in self._cache_sizes:
            self._cache_sizes[config, row_tokens] = self._largest_cache(config, row_tokens, memory_bytes)
        return self._cache_sizes[config, row_tokens]

    def _largest_cache(self, config: ModelConfig, row_tokens: int, memory_bytes: int) -> int:
        """Return the size of the largest cache that the devices have room for, for one row at least."""
        two = self._device.holds_two(peer_memory(config, self._shape(row_tokens)).peak)
        tokens = cache_that_fits(config, self._shape(row_tokens, versions=2 if two else 1), memory_bytes)
        rows = max(1, tokens // paged_tokens(row_tokens))
        if rows < self._rows:
            _log.info("the device has no room for all rows", rows=self._rows, at_the_greatest_length=rows)
        return max(tokens, paged_tokens(row_tokens))

    @functools.cached_property
    def _mesh(self) -> Mesh | None:
        """The devices, as rollcast.policy.mesh lays tensors on them; None: one device."""
        return tensor_mesh(jax.devices()[: self.devices]) if self.devices > 1 else None

    def _use(self, loaded: _Loaded) -> Params:
        """Return a version's tensors on the devices.

        If they are copied there only now, they are read back and checked while the next slices are generated.
        """
        begun_s = time.monotonic()
        tensors, copied = self._device.use(loaded.weights)
        if copied:
            paused_s, moved_bytes = time.monotonic() - begun_s, loaded.weights.size_bytes
            self._last_swap = Swap(loaded.version, "keyframe", paused_s, moved_bytes, read_back=False)
            self._held.check(functools.partial(self._check, loaded, self._last_swap))
        return tensors

    def _check(self, loaded: _Loaded, swap: Swap) -> None:
        """Read a version back from the devices, and compare it with what was copied there."""
        if read_back(loaded.weights.tensors) != loaded.weights.staged_hash:
            raise CorruptChunk(
                f"version {loaded.version} on the device is not what was copied there",
                cause="memory or the device changed it",
                fix="check this machine's memory; the peer does not generate with weights that it cannot vouch for",
            )
        if self._last_swap is swap:
            self._last_swap = replace(swap, read_back=True)

    def _compile(self, loaded: _Loaded, work: WarmUp) -> None:
        sampler = self._sampler(loaded.config, work.prompt_tokens_max, work.sampling.max_new_tokens)
        if sampler not in self._compiled:
            sampler.compile(_params_of([loaded] * sampler.adapter_slots))
            self._compiled.add(sampler)

    def _sampler(self, config: ModelConfig, prompt_tokens: int, new_tokens: int) -> Sampler:
        work = self._work
        if work and prompt_tokens <= work.prompt_tokens_max and new_tokens <= work.sampling.max_new_tokens:
            lengths = work.prompt_tokens_max, work.sampling.max_new_tokens
        else:
            lengths = _rounded_up(prompt_tokens), _rounded_up(new_tokens)
        record_routes = bool(work and work.router_replay and config.experts)
        finishes = bool(work and work.at_version_swap == "finish")
        slots = _ADAPTER_SLOTS if finishes and config.lora is not None and not config.lora.noisy else 1
        cache_tokens = self._cache_for(config, sum(lengths))
        return _sampler(config, *lengths, self._rows, cache_tokens, record_routes, slots, self._mesh)


class JaxGeneration:
    """A Generation (peer.engines.base). One cache serves all requests; those that do not fit into it wait."""

    def __init__(self, engine: JaxEngine, weights: _Loaded, requests: tuple[GenerateRequest, ...]) -> None:
        self._engine = engine
        self._weights = weights
        longest = max((len(request.prompt_token_ids) for request in requests), default=1)
        most_new = max((request.sampling.max_new_tokens for request in requests), default=1)
        sampler = engine._sampler(weights.config, longest, most_new)
        decode = None if engine._work is None else engine._work.decode
        asked = [_sample_request(item) for item in requests]
        self._generation = sampler.begin({}, asked, _NO_SAMPLING, decode=decode)  # the first slice gives it weights
        self._slots = [weights] * sampler.adapter_slots  # the version of each slot of adapters, or the only one
        self._generated_with: _Loaded | None = None
        self._renew_mode: AtVersionSwap = "keep"  # of the swaps since the last slice together

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests for rows that become free (see Generation.add)."""
        self._generation.add([_sample_request(item) for item in requests])

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        """Generate one slice in the engine's thread (see Generation.next_slice)."""
        return await self._engine._held.generate(functools.partial(self._generate, self._weights, tokens_max))

    def renew(self, mode: AtVersionSwap = "continue") -> None:
        """Switch to the active weights from the next slice on (see Generation.renew)."""
        if mode == "finish" and not self.versions_free:
            raise ValueError("there is no room for adapters of another version")
        self._weights = self._engine._held.active or self._weights
        if self._renew_mode != "continue":
            self._renew_mode = mode

    @property
    def versions_free(self) -> int | None:
        """How many slots of adapters are free (see Generation.versions_free)."""
        return len(self._generation.free_slots) if len(self._slots) > 1 else None

    def _exchange(self, weights: _Loaded) -> None:
        """Have the sampler compute with these weights, in a slot of their own if rollouts finish under others."""
        used = self._engine._use(weights)
        slot = self._generation.free_slots[0] if self._renew_mode == "finish" else 0
        if self._renew_mode == "finish":
            self._slots[slot] = weights
        else:
            self._slots = [weights] * len(self._slots)
        params = used if len(self._slots) == 1 else _params_of(self._slots)
        self._generation.renew(params, self._renew_mode, slot)

    def _generate(self, weights: _Loaded, tokens_max: int) -> list[CompletionSlice]:
        if self._generated_with is not weights:
            self._exchange(weights)
        self._generated_with, self._renew_mode = weights, "keep"
        shape = weights.config.route_shape
        return [
            CompletionSlice(
                number,
                self._slots[made.slot].epoch,
                self._slots[made.slot].version,
                made.token_ids,
                made.logprobs,
                made.finish_reason,
                *(b"" if one is None else shape.to_bytes(one) for one in (made.routes, made.context_routes)),
            )
            for number, made in self._generation.generate(tokens_max).items()
        ]


def _params_of(slots: Sequence[_Loaded]) -> Params:
    """Return what the model computes with on the devices: one version, or several versions' adapters over their base.

    These must be on the devices.
    """
    first = slots[0].weights
    if len(slots) == 1 or first.base is None:
        return first.params
    return {**first.base.tensors, **side_by_side([one.weights.tensors for one in slots])}


def _sample_request(item: GenerateRequest) -> SampleRequest:
    return SampleRequest(item.prompt_token_ids, item.seed, item.already_generated, item.sampling, item.earlier_turns)


@functools.lru_cache(maxsize=_SHAPES_MAX)
def _sampler(
    config: ModelConfig,
    prompt_tokens_max: int,
    new_tokens_max: int,
    rows: int,
    cache_tokens: int,
    record_routes: bool,
    adapter_slots: int,
    mesh: Mesh | None,
) -> Sampler:
    """Return the sampler of these shapes. It holds the compiled code, so all engines of a process share it."""
    return Sampler(
        config,
        prompt_tokens_max,
        new_tokens_max,
        rows,
        cache_tokens,
        record_routes=record_routes,
        adapter_slots=adapter_slots,
        mesh=mesh,
    )


def _rounded_up(length: int) -> int:
    return max(_LENGTH_MIN, 1 << (length - 1).bit_length())
