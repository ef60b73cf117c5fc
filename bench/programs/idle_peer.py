"""Run a peer without a model: the real relay, session and worker, and an engine that loads and generates nothing.

usage: python -m bench.programs.idle_peer CONFIG.toml LOG_FILE [wait]

With ``wait`` the peer joins when it reads a line on stdin: an interpreter takes seconds to start on a busy machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from peer.config import PeerConfig
from peer.engines.base import CompletionSlice, GenerateRequest, VersionState, WarmUp
from peer.service import run
from rollcast.policy.config import ModelConfig
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.wire.ids import Version
from rollcast.wire.version_swap import AtVersionSwap

_GENERATION_S_MAX = 86_400.0  # longer than any benchmark


class IdleEngine:
    """An engine without a model; see peer.engines.base.Engine. The relay has verified the state, which is not read."""

    hardware = "no engine"
    sampler = ""

    def computation(self, model: ModelConfig) -> str:
        """Return how a model is computed (see Engine.computation)."""
        return f"computes none of {model.layers} layers"

    def __init__(self) -> None:
        self.active_version: Version | None = None
        self.last_swap = None
        self.placement = None

    def expect(self, work: WarmUp) -> None:
        """Do nothing: there is nothing to compile."""

    async def load(self, version: VersionState) -> bytes:
        """Return the state hash of the record without reading the state."""
        return version.record.state_hash

    async def activate(self, version: Version) -> None:
        """Record the version as the active one."""
        self.active_version = version

    def begin(self, requests: Sequence[GenerateRequest]) -> IdleGeneration:
        """Return a generation that never produces a token."""
        return IdleGeneration()

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""


class IdleGeneration:
    """A generation that never produces a token; see peer.engines.base.Generation."""

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        """Wait for a day: the worker cancels the call when it ends.

        Raises:
            ProcessFailed: the day is over, so the peer was left running.
        """
        await asyncio.sleep(_GENERATION_S_MAX)
        raise ProcessFailed("an idle peer was left running")

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Do nothing: no request is ever generated."""

    def renew(self, mode: AtVersionSwap = "continue") -> None:
        """Do nothing: there are no weights to read again."""

    @property
    def versions_free(self) -> int | None:
        """None: there are no versions."""
        return None


def main() -> int:
    die_with_parent()
    config = load_config(Path(sys.argv[1]), PeerConfig)
    configure_logging(config.name, log_file=Path(sys.argv[2]))
    if "wait" in sys.argv[3:]:
        sys.stdin.readline()
    return run_process(lambda stop: run(config, stop, engine_factory=lambda _: IdleEngine()))


if __name__ == "__main__":
    sys.exit(main())
