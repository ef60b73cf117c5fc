"""Generate with the jax engine on several virtual devices and on one, with one version in memory; print JSON.

tests/peer/engines/test_jax_engine.py starts this program.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Literal

import jax
import structlog

from peer.engines.base import VersionState
from peer.engines.jax_engine import JaxEngine
from rollcast.runtime.errors import ConfigError
from tests.peer.engines.engine_conformance import generate, requests
from tests.peer.engines.test_jax_engine import MODEL, jax_version


async def tokens_of_two_versions(devices: int | Literal["all"]) -> tuple[list[tuple[int, ...]], str]:
    """Return the tokens under version 0 and under version 1, which takes its place, and the engine's own account."""
    engine = JaxEngine(concurrent_rollouts=4, versions_on_device="one", devices=devices)
    tokens: list[tuple[int, ...]] = []
    for version in (0, 1):
        record, state = jax_version(version)
        assert await engine.load(VersionState(record, memoryview(state))) == record.state_hash
        await engine.activate(record.version)
        tokens += [one.token_ids for one in await generate(engine, requests(4))]
    await engine.load(VersionState(record, memoryview(state)))  # in the thread that has read the device back
    await generate(engine, requests(1))
    account = f"{engine.hardware}; {engine.computation(MODEL)}; {engine.placement}"
    await engine.close()
    return tokens, account


async def main() -> None:
    alone, divided = await tokens_of_two_versions(1), await tokens_of_two_versions(2)
    try:
        refused = str(JaxEngine(concurrent_rollouts=4, devices=jax.device_count() + 1).devices)
    except ConfigError as error:
        refused = str(error)
    every = JaxEngine(concurrent_rollouts=4).devices
    print(json.dumps({"same": alone[0] == divided[0], "account": divided[1], "refused": refused, "every": every}))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main())
