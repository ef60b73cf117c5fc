"""The vLLM rollout engine: vLLM in processes of its own, which generates under one version's weights at a time.

`load` makes a version ready on the disk, and into the first server also on the device. `activate` decides what the next
generation uses. The weights are exchanged, in place, when a slice needs other ones than vLLM holds: so a generation
that is not renewed ends under the version with which it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from peer.engines.base import GenerateRequest, Placement, Swap, VersionState, WarmUp
from peer.engines.vllm.adapters import rank_max, stage_adapters
from peer.engines.vllm.checkpoint import Checkpoint, ServerShape, read_model, server_shape, stage
from peer.engines.vllm.environment import VllmPython, Workspace, find_vllm
from peer.engines.vllm.generation import VllmGeneration
from peer.engines.vllm.supervisor import Supervisor, server_command
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version
from rollcast.wire.versions.state_hash import state_hash

log = structlog.get_logger()

# Lengths without an announcement of the work are rounded up to a power of two from here: another length is a restart.
_LENGTH_MIN = 512


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How vLLM is started.

    Args:
        tensor_parallel: devices that the model is divided over; 0: as many as are there and fit.
        cache_tokens: size of the key-value cache in tokens; 0: as vLLM chooses.
        memory_share: share of each device's memory that vLLM may take, 0 to 1; None: vLLM's default.
        slice_s: longest time of a slice in seconds.
    """

    concurrent_rollouts: int
    tensor_parallel: int = 0
    cache_tokens: int = 0
    memory_share: float | None = None
    slice_s: float = 0.5


def vllm_engine(settings: VllmSettings, python: Path | None, state_folder: Path) -> VllmEngine:
    """Return an engine whose files are below a peer's state folder. vLLM starts with the first version.

    Args:
        python: interpreter of the environment that has vLLM; None: this process's.

    Raises:
        MissingExtra: see find_vllm.
    """
    found = find_vllm(python)
    workspace = Workspace(state_folder / "vllm")
    command, environment = server_command(found.path, workspace)
    return VllmEngine(settings, found, workspace, Supervisor(command, workspace, environment))


class VllmEngine:
    """An Engine (peer.engines.base) on vLLM."""

    def __init__(
        self, settings: VllmSettings, python: VllmPython, workspace: Workspace, supervisor: Supervisor
    ) -> None:
        self._settings = settings
        self._python = python
        self._workspace = workspace
        self._supervisor = supervisor
        self._work: WarmUp | None = None
        self._active: Checkpoint | None = None
        self._beside: Checkpoint | None = None
        self._staged: list[Checkpoint] = []
        self._tokens_max = 0
        self._generation: VllmGeneration | None = None

    def expect(self, work: WarmUp) -> None:
        """Announce the work, for whose lengths vLLM is started (see Engine.expect)."""
        self._work = work
        if work.router_replay:
            log.warning("the vllm engine does not report the experts of tokens: rollouts come without routes")

    async def load(self, version: VersionState) -> bytes:
        """Make a version ready to be exchanged; the first one is put into vLLM at once (see Engine.load).

        The hash is that of the bytes that vLLM maps. What vLLM has made of them is read back once they are exchanged
        (peer.engines.vllm.exchange); no token that other weights gave is returned.
        """
        self._beside = None
        self.discard_unused()
        checkpoint, loaded_hash = await asyncio.to_thread(self._stage, version)
        self._staged.append(checkpoint)
        self._beside = checkpoint
        if not self._supervisor.loaded:
            shape = self.shape(checkpoint, self._announced_tokens())
            await self._supervisor.surely(lambda: self._supervisor.prepare(shape, checkpoint))
        else:
            await self._supervisor.get_ready(checkpoint)
        return loaded_hash

    async def activate(self, version: Version) -> None:
        """Make the loaded version active (see Engine.activate)."""
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self._active is not None and version <= self._active.version:
            raise ValueError(f"version {version} is not newer than {self._active.version}")
        self._active, self._beside = self._beside, None
        self.discard_unused()

    def begin(self, requests: Sequence[GenerateRequest]) -> VllmGeneration:
        """Start completions; those of an earlier generation wait for its next slice (see Engine.begin)."""
        if self._active is None:
            raise ValueError("no version is active")
        generation = VllmGeneration(self, self._active)
        generation.add(requests)
        if self._generation is not None:
            self._generation.suspend()
        self._generation = generation
        self.discard_unused()
        return generation

    @property
    def hardware(self) -> str:
        """The release of vLLM, and once it runs the number and kind of its devices."""
        facts = self._supervisor.facts
        devices = f", {facts['tensor_parallel']} of {facts['devices']} x {facts['device']}" if facts else ""
        return f"vllm {self._python.release}{devices}"

    @property
    def sampler(self) -> str:
        """The kind of device, once vLLM runs."""
        facts = self._supervisor.facts
        return f"vllm-{'cpu' if facts and 'cpu' in str(facts['device']).lower() else 'gpu'}"

    def computation(self, model: ModelConfig) -> str:
        """Return how a model is sampled here (see Engine.computation)."""
        return f"computes on {self.hardware}, precision {model.precision}, logits in float32"

    @property
    def active_version(self) -> Version | None:
        """The version with which the next generation starts; None: no version is active."""
        return None if self._active is None else self._active.version

    @property
    def last_swap(self) -> Swap | None:
        """The newest exchange of weights (see Engine.last_swap)."""
        return self._supervisor.last_swap

    @property
    def placement(self) -> Placement | None:
        """Where the weights are (see Engine.placement); versions are written in place."""
        facts = self._supervisor.facts
        return Placement(facts["tensor_parallel"], versions=1) if facts else None

    async def close(self) -> None:
        """End vLLM (see Engine.close)."""
        if self._generation is not None:
            self._generation.suspend()
        await self._supervisor.close()
        await asyncio.to_thread(self._workspace.close)

    # ------------------------------------------------------------ for the generation

    @property
    def active(self) -> Checkpoint | None:
        """Return the active version."""
        return self._active

    @property
    def supervisor(self) -> Supervisor:
        """Return the server."""
        return self._supervisor

    @property
    def work(self) -> WarmUp | None:
        """Return the announced work."""
        return self._work

    @property
    def slice_s(self) -> float:
        """Return the longest time of a slice in seconds."""
        return self._settings.slice_s

    def discard_unused(self) -> None:
        """Remove the files of versions that no later start of vLLM can need."""
        generating = () if self._generation is None else self._generation.checkpoints
        for one in [one for one in self._staged if one not in (self._active, self._beside, *generating)]:
            one.discard()
            self._staged.remove(one)

    def shape(self, checkpoint: Checkpoint, tokens_max: int) -> ServerShape:
        """Return the server that a version and sequences of this length need. Lengths only rise."""
        self._tokens_max = max(self._tokens_max, tokens_max)
        settings, lora = self._settings, checkpoint.config.lora
        shape = server_shape(
            checkpoint.config,
            self._tokens_max,
            concurrent_rollouts=settings.concurrent_rollouts,
            tensor_parallel=settings.tensor_parallel,
            memory_share=settings.memory_share,
            cache_tokens=settings.cache_tokens,
        )
        if lora is None:
            return shape
        return replace(shape, base=str(checkpoint.base), adapter_rank=rank_max(lora.rank))

    def tokens_max(self, needed: int) -> int:
        """Return the length to start vLLM for, at least ``needed``."""
        announced = self._announced_tokens()
        return announced if needed <= announced else max(_LENGTH_MIN, 1 << (needed - 1).bit_length())

    def _announced_tokens(self) -> int:
        work = self._work
        return _LENGTH_MIN if work is None else work.prompt_tokens_max + work.sampling.max_new_tokens

    def _stage(self, version: VersionState) -> tuple[Checkpoint, bytes]:
        loaded_hash = state_hash(version.state)
        folder: Path = self._workspace.folder / "versions"
        if read_model(version.record).lora is not None:
            return stage_adapters(version, folder, loaded_hash), loaded_hash
        return stage(version, folder, loaded_hash), loaded_hash
