"""Run a peer without a model: the real relay, session and worker, and an engine that loads and generates nothing.

usage: python -m bench.programs.idle_peer CONFIG.toml LOG_FILE [wait]

With ``wait`` it joins once a line comes on stdin: an interpreter takes seconds to start on a busy machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from peer.config import PeerConfig
from peer.engines.base import CompletionSlice, GenerateRequest, WarmUp
from peer.service import run
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VersionRecord

_GENERATION_S_MAX = 86_400.0  # longer than any benchmark


class IdleEngine:
    """See peer.engines.base.Engine. The relay has verified the state already; nothing is read here."""

    hardware = "no engine"

    def __init__(self) -> None:
        self.active_version: Version | None = None

    def expect(self, work: WarmUp) -> None:
        """Nothing is compiled."""

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Claim what the record says."""
        return record.state_hash

    async def activate(self, version: Version) -> None:
        """Only remember it."""
        self.active_version = version

    def begin(self, requests: Sequence[GenerateRequest]) -> IdleGeneration:
        """See IdleGeneration."""
        return IdleGeneration()

    async def close(self) -> None:
        """There is nothing to free."""


class IdleGeneration:
    """See peer.engines.base.Generation."""

    async def draw(self, tokens_max: int) -> list[CompletionSlice]:
        """Never answer: the worker cancels this when it ends.

        Raises:
            ProcessFailed: a day is over.
        """
        await asyncio.sleep(_GENERATION_S_MAX)
        raise ProcessFailed("an idle peer was left running")

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Nothing is drawn."""

    def renew(self) -> None:
        """There is nothing to read again."""


def main() -> int:
    die_with_parent()
    config = load_config(Path(sys.argv[1]), PeerConfig)
    configure_logging(config.name, log_file=Path(sys.argv[2]))
    if "wait" in sys.argv[3:]:
        sys.stdin.readline()
    return run_process(lambda stop: run(config, stop, engine_factory=lambda _: IdleEngine()))


if __name__ == "__main__":
    sys.exit(main())
