"""Test what both engines share in holding versions, as far as the conformance suite does not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from peer.engines.held_versions import HeldVersions, LoadedVersion
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CorruptChunk
from rollcast.wire.ids import Epoch, Version


def loaded(version: int) -> tuple[LoadedVersion[str], bytes]:
    return LoadedVersion(Epoch(0), Version(version), ModelConfig(), f"weights {version}"), b"hash"


async def test_the_inactive_version_is_freed_before_the_next_is_read() -> None:
    held: HeldVersions[str] = HeldVersions()
    await held.load(lambda: loaded(1))
    with pytest.raises(OSError, match="no room"):
        await held.load(_refuse)
    with pytest.raises(ValueError, match="not loaded"):
        held.activate(Version(1))
    held.close()


async def test_a_version_is_read_while_a_slice_is_generated() -> None:
    held: HeldVersions[str] = HeldVersions()
    may_end = threading.Event()
    slice_drawn = asyncio.create_task(held.generate(lambda: may_end.wait(30.0)))
    assert await held.load(lambda: loaded(3)) == b"hash"
    assert not slice_drawn.done()
    held.activate(Version(3))
    assert held.require_active().weights == "weights 3"
    may_end.set()
    assert await slice_drawn
    held.close()
    assert held.active_version is None


async def test_a_failed_check_ends_the_generation() -> None:
    held: HeldVersions[str] = HeldVersions()
    held.check(lambda: None)
    await held.load(lambda: loaded(1))  # in the same thread, so that the check is done
    assert await held.generate(lambda: "tokens") == "tokens"

    def fail() -> None:
        raise CorruptChunk("another state")

    held.check(fail)
    await held.load(lambda: loaded(2))
    with pytest.raises(CorruptChunk, match="another state"):
        await held.generate(lambda: "tokens")
    held.close()


def _refuse() -> tuple[LoadedVersion[str], bytes]:
    raise OSError("no room")
