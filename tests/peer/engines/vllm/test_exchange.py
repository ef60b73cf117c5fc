"""Test when weights are written whole and when in part, and what is claimed of them, with a server that is played."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from peer.engines.base import VersionState
from peer.engines.vllm.checkpoint import Checkpoint, stage
from peer.engines.vllm.exchange import Exchange, WrongWeights
from rollcast.wire.versions.state_hash import state_hash
from tests.peer.engines.vllm.versions import zeros


@dataclass
class PlayedServer:
    """Holds one state; ``why``: why it cannot be written in place; ``damage``: what is read back has another bit."""

    why: str = ""
    damage: bool = False
    in_place: bool = True
    done: list[str] = field(default_factory=list)
    state: bytes = b""
    staged: bytes = b""

    async def call(self, header: dict[str, Any], timeout_s: float, doing: str) -> dict[str, Any]:
        assert timeout_s > 0.0
        assert doing
        return self.answer(header)

    def answer(self, header: dict[str, Any]) -> dict[str, Any]:
        if header["do"] != "read_back":
            self.done.append(header["do"])
        match header["do"]:
            case "load":
                self.state = Path(header["state"]).read_bytes()
            case "find_places":
                names = [name for one in json.loads(Path(header["table"]).read_text()) for name in one["names"]]
                parts = {name: [[[0, 0], [1 << 20, 1 << 20], 0, 0, [1 << 10, 1]]] for name in names}
                Path(f"{header['placement']}.0").write_text(json.dumps(parts))
                return {"why": [self.why]}
            case "apply_patch":
                self.state = self.staged
            case "read_back":
                read = self.state if self.in_place else b"packed"
                return {"hash": state_hash(read[:-1] + b"?" if self.damage else read).hex()}
        return {"paused_s": 0.25, "moved_bytes": 7}


def checkpoint(folder: Path, version: int) -> Checkpoint:
    record, state = zeros(version)
    return stage(VersionState(record, memoryview(state)), folder, state_hash(state))


async def test_what_differs_is_written_after_the_first_version(tmp_path: Path) -> None:
    server = PlayedServer()
    exchange = Exchange(server.call, tmp_path / "exchange")
    versions = [checkpoint(tmp_path, version) for version in range(3)]
    first = await exchange.put(versions[0])
    assert (first.kind, first.read_back, exchange.loaded) == ("keyframe", True, versions[0].salt)
    size = await exchange.get_ready(versions[1])
    assert size is not None
    assert size.changed == 1
    server.staged = versions[1].state.read_bytes()
    swap = await exchange.put(versions[1])
    assert (swap.version, swap.kind, swap.paused_s, swap.moved_bytes, swap.read_back) == (1, "delta", 0.25, 7, False)
    assert (await exchange.read_back(swap)).read_back
    assert server.done == ["load", "find_places", "stage_patch", "apply_patch"]
    await exchange.get_ready(versions[2])
    back = await exchange.put(versions[0])  # the prepared change leads elsewhere
    assert (back.kind, server.done[-1]) == ("keyframe", "load")


async def test_the_files_of_the_loaded_version_may_be_removed(tmp_path: Path) -> None:
    exchange = Exchange(PlayedServer().call, tmp_path / "exchange")
    old, new = checkpoint(tmp_path, 0), checkpoint(tmp_path, 1)
    await exchange.put(old)
    old.discard()
    assert await exchange.get_ready(new) is not None


@pytest.mark.parametrize("server", [PlayedServer(why="it packs them"), PlayedServer(in_place=False)])
async def test_weights_in_another_form_are_always_loaded_whole(tmp_path: Path, server: PlayedServer) -> None:
    exchange = Exchange(server.call, tmp_path / "exchange")
    first = await exchange.put(checkpoint(tmp_path, 0))
    assert not first.read_back
    assert await exchange.get_ready(checkpoint(tmp_path, 1)) is None
    swap = await exchange.put(checkpoint(tmp_path, 1))
    assert swap.kind == "keyframe"
    assert not (await exchange.read_back(swap)).read_back
    assert server.done == ["load", "find_places", "forget_places", "load"]


async def test_weights_that_are_not_the_versions_are_noticed(tmp_path: Path) -> None:
    server = PlayedServer()
    exchange = Exchange(server.call, tmp_path / "exchange")
    await exchange.put(checkpoint(tmp_path, 0))
    server.damage = True
    swap = await exchange.put(checkpoint(tmp_path, 1))
    with pytest.raises(WrongWeights, match="version 1"):
        await exchange.read_back(swap)


async def test_a_failed_exchange_leaves_no_version(tmp_path: Path) -> None:
    class Failing(PlayedServer):
        async def call(self, header: dict[str, Any], timeout_s: float, doing: str) -> dict[str, Any]:
            if header["do"] == "apply_patch":
                raise WrongWeights("out of memory")
            return await super().call(header, timeout_s, doing)

    exchange = Exchange(Failing().call, tmp_path / "exchange")
    await exchange.put(checkpoint(tmp_path, 0))
    await exchange.get_ready(checkpoint(tmp_path, 1))
    with pytest.raises(WrongWeights):
        await exchange.put(checkpoint(tmp_path, 1))
    assert exchange.loaded == ""
