from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from coordinator.rpc import tokenizer
from coordinator.rpc.tokenizer import TokenizerCalls
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.wire.text.hub_tokenizer_files import tokenizer_folder


class Context:
    """Where a call's answers go."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    async def write(self, part: pb.TokenizerPart) -> None:
        self.parts.append(part.data)


async def test_the_file_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PART_BYTES", 100)
    data = (tokenizer_folder(tmp_path / "model") / "tokenizer.json").read_bytes()
    calls, context = TokenizerCalls(tmp_path / "model"), Context()
    await calls.TokenizerFile(pb.TokenizerRequest(sha256=hashlib.sha256(data).hexdigest()), context)
    assert len(context.parts) > 1
    assert zstandard.decompress(b"".join(context.parts)) == data


async def test_what_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "model")
    for folder in (None, tmp_path / "model"):
        with pytest.raises(MalformedMessage, match="no tokenizer with this hash"):
            await TokenizerCalls(folder).TokenizerFile(pb.TokenizerRequest(sha256="0" * 64), Context())
