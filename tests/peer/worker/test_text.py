from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import zstandard

from peer.worker import text as run_text
from peer.worker.text import RunText
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder


class Stub:
    """A coordinator that has one file and fails the first ``fails`` calls: unreachable at first, then cancelled."""

    def __init__(self, data: bytes, fails: int = 0) -> None:
        self.frame = zstandard.compress(data)
        self.fails = fails
        self.asked: list[str] = []

    async def TokenizerFile(self, request: pb.TokenizerRequest, **_: float) -> AsyncIterator[pb.TokenizerPart]:
        self.asked.append(request.sha256)
        if 1 < len(self.asked) <= self.fails:
            raise asyncio.CancelledError  # as grpc.aio does when the channel is closed
        if len(self.asked) <= self.fails:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "away")
        for start in range(0, len(self.frame), 64):
            yield pb.TokenizerPart(data=self.frame[start : start + 64])


class NoJitter(Random):
    """A random source that always returns 0, so that retries do not wait."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return 0.0


def text_from(folder: Path, stub: Any) -> RunText:
    return RunText(folder / "tokenizers", lambda: stub, NoJitter())


async def test_rollcasts_own_tokenizer_comes_with_the_welcome(tmp_path: Path) -> None:
    ours = Tokenizer(("what is ",), "0123456789")
    text = text_from(tmp_path, None)
    assert text.known(ours.to_json(), ours.stop_ids) is None
    decode = await text.decode(ours.to_json(), ours.stop_ids)
    assert decode(ours.encode("what is 12")) == "what is 12"
    assert text.known(ours.to_json(), ours.stop_ids) is decode


async def test_a_published_tokenizer_is_fetched_once_and_kept(tmp_path: Path) -> None:
    hub = HubTokenizer(tokenizer_folder(tmp_path / "model"))
    stub = Stub((tmp_path / "model" / "tokenizer.json").read_bytes(), fails=2)
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "of-another-run.json").touch()
    for _ in range(2):  # as if the peer had been started again
        decode = await text_from(tmp_path, stub).decode(hub.to_json(), hub.stop_ids)
        for ids in (hub.encode("12 + é?"), [49, 999, 50, *hub.stop_ids, 51]):
            assert decode(ids) == hub.decode(ids)
    assert len(stub.asked) == 3, "two tries in vain and a third; then it was there"
    digest = hashlib.sha256((tmp_path / "model" / "tokenizer.json").read_bytes()).hexdigest()
    assert [path.name for path in (tmp_path / "tokenizers").iterdir()] == [f"{digest}.json"]


async def test_a_tokenizer_that_the_disk_refuses_is_used_nevertheless(tmp_path: Path) -> None:
    hub = HubTokenizer(tokenizer_folder(tmp_path / "model"))
    stub = Stub((tmp_path / "model" / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizers").touch()
    decode = await text_from(tmp_path, stub).decode(hub.to_json(), hub.stop_ids)
    assert decode(hub.encode("12 + 3")) == "12 + 3"


async def test_a_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    hub = HubTokenizer(tokenizer_folder(tmp_path / "model"))
    stub = Stub((tmp_path / "model" / "tokenizer.json").read_bytes())
    await text_from(tmp_path, stub).decode(hub.to_json(), hub.stop_ids)
    (kept,) = (tmp_path / "tokenizers").iterdir()
    kept.write_bytes(b"{}")
    await text_from(tmp_path, stub).decode(hub.to_json(), hub.stop_ids)
    assert len(stub.asked) == 2


@pytest.mark.parametrize(
    ("data", "frame", "what"),
    [
        (b"another file", None, "not the one that its hash names"),
        (b"", b"no frame", "cannot be unpacked"),
        (bytes(5000), None, "too large"),
    ],
)
async def test_a_file_with_another_hash_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, frame: bytes | None, what: str
) -> None:
    hub = HubTokenizer(tokenizer_folder(tmp_path / "model"))
    monkeypatch.setattr(run_text, "TOKENIZER_BYTES_MAX", 4096)
    stub = Stub(data)
    stub.frame = stub.frame if frame is None else frame
    with pytest.raises(MalformedMessage, match=what):
        await text_from(tmp_path, stub).decode(hub.to_json(), hub.stop_ids)
    assert not (tmp_path / "tokenizers").exists()


async def test_a_hash_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(MalformedMessage, match="hash is malformed"):
        await text_from(tmp_path, None).decode('{"hub": {"size": 8, "sha256": "../../x"}}', (1,))
