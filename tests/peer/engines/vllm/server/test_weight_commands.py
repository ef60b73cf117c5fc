"""Test the commands about weights with a vLLM that is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.engines.vllm.server.weight_commands import WeightCommands
from rollcast.wire.versions.state_hash import state_hash


class PlayedLlm:
    """Two workers; what is read back is ``read``."""

    def __init__(self, read: bytes = b"") -> None:
        self.called: list[tuple[Any, ...]] = []
        self.read = read

    async def end_running(self) -> None:
        self.called.append(("end",))

    def go_on_as(self, salt: str) -> None:
        self.called.append(("go on", salt))

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        assert not clear_cache
        self.called.append(("pause", mode))

    async def resume_generation(self) -> None:
        self.called.append(("resume",))

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self.called.append((method, *args))
        if method == "read_back":
            self._write(args[3], args[1], args[2])
        return [3, 4]

    def _write(self, path: str, first: int, count: int) -> None:
        assert Path(path).read_bytes() == bytes(2 * count)
        Path(path).write_bytes(self.read[2 * first : 2 * (first + count)])


async def test_requests_end_before_weights_are_exchanged() -> None:
    llm = PlayedLlm()
    commands = WeightCommands(llm, llm.end_running, llm.go_on_as)
    found = await commands.carry_out({"do": "load", "state": "s", "table": "t", "keep_as": ""})
    assert found["moved_bytes"] == 7
    assert found["paused_s"] >= 0.0
    assert (await commands.carry_out({"do": "apply_patch", "keep_as": ""}))["moved_bytes"] == 7
    assert llm.called == [("end",), ("load_version", "s", "t"), ("end",), ("apply_patch",)]


async def test_kept_requests_rest_and_are_relabelled_before_weights_are_exchanged() -> None:
    llm = PlayedLlm()
    commands = WeightCommands(llm, llm.end_running, llm.go_on_as)
    await commands.carry_out({"do": "apply_patch", "keep_as": "1-ab"})
    assert llm.called == [("pause", "keep"), ("go on", "1-ab"), ("apply_patch",), ("resume",)]


async def test_what_does_not_change_weights_lets_requests_run() -> None:
    llm = PlayedLlm()
    commands = WeightCommands(llm, llm.end_running, llm.go_on_as)
    assert await commands.carry_out({"do": "find_places", "table": "t", "placement": "p"}) == {"why": [3, 4]}
    assert await commands.carry_out({"do": "stage_patch", "arguments": ["p"]}) == {}
    assert await commands.carry_out({"do": "forget_places", "arguments": []}) == {}
    assert llm.called == [("find_places", "t", "p"), ("stage_patch", "p"), ("forget_places",)]


async def test_weights_are_hashed_piece_by_piece(tmp_path: Path) -> None:
    llm = PlayedLlm(b"abcdef")
    commands = WeightCommands(llm, llm.end_running, llm.go_on_as)
    for _ in range(2):  # a second reading begins anew
        for first, count in ((0, 2), (2, 1)):
            header = {"do": "read_back", "table": "t", "first": first, "count": count, "size_bytes": 2 * count}
            found = await commands.carry_out(header | {"scratch": str(tmp_path / "scratch")})
        assert found == {"hash": state_hash(b"abcdef").hex()}
    assert not (tmp_path / "scratch").exists()
