"""Tokens from the command line, against a served API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.options import RunOptions
from rollcast.cli.run import token
from rollcast.runtime.errors import ConfigError, MalformedMessage, NotAllowed
from tests.coordinator.http.serving import KEY, served


@pytest.fixture(autouse=True)
def _no_token_of_the_person_who_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


async def test_a_token_from_birth_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "secrets").mkdir(parents=True)
    (run / "secrets" / "operator.key").write_text(KEY)
    async with served(tmp_path) as page:
        (run / "endpoints.json").write_text(json.dumps({"http_url": page.url, "grpc_address": ""}))
        await asyncio.to_thread(token.create, role="viewer", name="ann", days=2.0, run=RunOptions(run))
        text = capsys.readouterr().out.strip()
        assert (await page.get("/api/v1/session", text))[1]["who"] == "ann"
        with pytest.raises(MalformedMessage, match="ann"):
            await asyncio.to_thread(token.create, role="viewer", name="ann", run=RunOptions(run))
        await asyncio.to_thread(token.show, run=RunOptions(run))
        assert "ann" in capsys.readouterr().out
        monkeypatch.setenv(TOKEN_VARIABLE, text)  # a viewer's is not enough
        with pytest.raises(NotAllowed):
            await asyncio.to_thread(token.show, run=RunOptions(url=page.url))
        monkeypatch.delenv(TOKEN_VARIABLE)
        await asyncio.to_thread(token.revoke, "ann", run=RunOptions(run))
        assert (await page.get("/api/v1/session", text))[0] == 401
        with pytest.raises(ConfigError, match="ann"):
            await asyncio.to_thread(token.revoke, "ann", run=RunOptions(run))
        capsys.readouterr()
        await asyncio.to_thread(token.show, run=RunOptions(run), json_output=True)
        (listed,) = json.loads(capsys.readouterr().out)["tokens"]
        assert not listed["holds"]


def test_lines_say_what_holds_until_when() -> None:
    shared = {"made_unix_s": 0.0, "access": "viewer", "revoked_unix_s": None, "expires_unix_s": None, "holds": True}
    tokens = [
        {**shared, "id": 1, "name": "ann"},
        {**shared, "id": 2, "name": "bob", "expires_unix_s": 86_400.0, "holds": False},
        {**shared, "id": 3, "name": "bob", "expires_unix_s": 86_400.0 * 2},
        {**shared, "id": 4, "name": "eve", "revoked_unix_s": 60.0, "holds": False},
    ]
    assert token.lines_of(tokens) == [
        "\N{CHECK MARK}    1  ann                      viewer    until it is revoked",
        "     2  bob                      viewer    expired 1970-01-02 00:00 UTC",
        "\N{CHECK MARK}    3  bob                      viewer    until 1970-01-03 00:00 UTC",
        "     4  eve                      viewer    revoked 1970-01-01 00:01 UTC",
    ]
    assert (token.number_of("bob", tokens), token.number_of("1", tokens)) == (3, 1)
    with pytest.raises(ConfigError):
        token.number_of("eve", tokens)
    assert "create" in token.lines_of([])[0]
