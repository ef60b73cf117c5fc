from __future__ import annotations

import asyncio
import json
import webbrowser
from pathlib import Path

import pytest

from peer.donor.control.control import Control
from rollcast.cli.peer.page import page

URL = "http://127.0.0.1:7000/#token=secret"


async def test_the_address_is_printed_and_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    async with Control({"page": lambda _: {"url": URL}}).serving(tmp_path):
        assert await asyncio.to_thread(page, state=tmp_path) == 0
        assert capsys.readouterr().out == URL + "\n"
        assert opened == []
        await asyncio.to_thread(page, open_=True, state=tmp_path, json_output=True)
    assert json.loads(capsys.readouterr().out) == {"url": URL}
    assert opened == [URL]
