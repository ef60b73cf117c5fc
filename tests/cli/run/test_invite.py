from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.http.routes import Answer, Call, Route
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.run import invite
from rollcast.runtime.errors import ConfigError
from tests.cli.run.test_workers import run_folder
from tests.coordinator.http.serving import Given, served

ONE = {
    "id": "0123456789abcdef",
    "role": "peer",
    "quota": 3,
    "used": 1,
    "expires_unix_s": 86_400.0,
    "note": "Ann",
    "revoked": False,
}


async def test_invites_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    asked: list[Any] = []

    async def make(call: Call) -> Answer:
        asked.append(call.body.model_dump())
        return {"id": ONE["id"], "invite": "rollcast1-x", "command": "rollcast peer join rollcast1-x"}

    async def read(call: Call) -> Answer:
        asked.append(dict(call.params))
        return {"invites": [ONE]}

    from coordinator.api.invites import NewInvite

    path = "/api/v1/invites"
    routes = [
        Route("POST", path, "operator", make, "Make.", body=NewInvite),
        Route("GET", path, "viewer", read, "Read."),
        Route("POST", f"{path}/{{id}}/revoke", "operator", read, "Revoke."),
    ]
    async with served(tmp_path, Given(routes=routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(invite.make, quota=3, days=1.0, note="Ann", run=run)
        assert capsys.readouterr().out == "rollcast peer join rollcast1-x\n"
        await asyncio.to_thread(invite.show, run=run, json_output=True)
        assert json.loads(capsys.readouterr().out) == {"invites": [ONE]}
        await asyncio.to_thread(invite.revoke, str(ONE["id"]), run=run)
        assert capsys.readouterr().out == "revoked: 0123456789abcdef\n"
    assert asked == [{"role": "peer", "quota": 3, "lifetime_s": 86_400.0, "note": "Ann"}, {}, {"id": ONE["id"]}]
    with pytest.raises(ConfigError, match="not the id"):
        invite.revoke("../tokens")


def test_lines_say_what_became_of_each() -> None:
    others = [ONE | {"used": 3}, ONE | {"revoked": True}]
    assert [invite.fate_of(one, 0.0) for one in (ONE, *others)] == ["open", "used up", "revoked"]
    assert invite.fate_of(ONE, 1e6) == "ended"
    (line,) = invite.lines_of([ONE], 0.0)
    assert line == "0123456789abcdef  open      peer     1 of 3      until 1970-01-02 00:00 UTC  Ann"
    assert invite.lines_of([], 0.0) == ["There are no invites yet. Create one with `rollcast invite`."]
