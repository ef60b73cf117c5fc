"""Test an operator's commands against a served API: workers, tokens, invites."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.invites import NewInvite
from coordinator.core.events.operator_events import PeerBanned, PeerDrained, PeerEnabled, PeerPinned
from coordinator.core.members.audit_book import AuditRecord
from coordinator.core.members.reputation_card import card_of_peer
from coordinator.http.routes import Answer, Call, Route
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.live import invite, token, workers
from rollcast.cli.options import RunOptions
from rollcast.runtime.errors import ConfigError, MalformedMessage, NotAllowed, RunOver
from rollcast.wire.ids import PeerId
from tests.coordinator.api.test_operator import Acts
from tests.coordinator.http.serving import KEY, Given, served
from tests.wire.joining.test_invite import INVITE

COLUMNS = ["name", "role", "state", "banned", "last_seen_s", "tokens_per_s", "reason"]


@pytest.fixture(autouse=True)
def _no_token_of_the_person_who_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def run_folder(path: Path, url: str) -> RunOptions:
    (path / "secrets").mkdir(parents=True)
    (path / "secrets" / "operator.key").write_text(KEY)
    (path / "endpoints.json").write_text(json.dumps({"http_url": url, "page_url": url, "grpc_address": ""}))
    return RunOptions(run_folder=path)


async def test_acts_are_performed_and_previewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts = Acts()
    async with served(tmp_path, Given(routes=acts.routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        assert await asyncio.to_thread(workers.drain, "a", reason="move", run=run) == 0
        assert capsys.readouterr().out == "a: drained\n"
        assert await asyncio.to_thread(workers.ban, "b", "who", run=run) == 76
        assert "who: not changed: no peer has this id" in capsys.readouterr().out
        assert await asyncio.to_thread(workers.enable, "a", "b", run=run, json_output=True) == 0
        assert json.loads(capsys.readouterr().out)["done"] == ["a", "b"]
        assert await asyncio.to_thread(workers.pin, "off", "a", run=run) == 0
        given = list(acts.orders)
        capsys.readouterr()
        assert await asyncio.to_thread(workers.ban, "a", preview=True, run=run) == 0
        assert capsys.readouterr().out.splitlines()[0] == "fewer"
    assert acts.orders == given
    a, b = PeerId("a"), PeerId("b")
    assert given == [
        PeerDrained(a, "move", "a"),
        PeerBanned(b, "", "b"),
        PeerEnabled(a),
        PeerEnabled(b),
        PeerPinned(a, "off"),
    ]
    with pytest.raises(ConfigError, match="no worker is given"):
        workers.drain(run=run)


async def test_workers_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ["ann", "peer", "idle", False, 0.4, 120.5, "drained by the operator"],
        ["hub", "origin", "idle", False, 0.1, 0.0, ""],
        ["old", "peer", "left", False, 90.0, None, "gone"],
        ["bad", "peer", "left", True, 90.0, None, "banned by the operator"],
    ]

    async def read(call: Call) -> Answer:
        return {"columns": COLUMNS, "rows": rows}

    route = Route("GET", "/api/v1/workers", "viewer", read, "Workers.")
    async with served(tmp_path, Given(routes=[route])) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(workers.show, run=run)
        heading, *lines = capsys.readouterr().out.splitlines()
        assert heading.split()[:3] == ["name", "state", "behind"]  # and no empty column of regions
        assert [line.split()[0] for line in lines] == ["ann", "bad"]
        assert lines[0].split()[1] == "ready"
        assert lines[0].endswith("drained by the operator")
        await asyncio.to_thread(workers.show, all_of_them=True, run=run, json_output=True)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["workers"]
        assert [one["name"] for one in found] == ["ann", "old", "bad"]


def test_empty_fleet_prints_a_hint() -> None:
    assert workers.lines_of([]) == ["No workers are connected. Create an invite for a donor with `rollcast invite`."]


async def test_an_ended_run_gets_no_invite_and_suggests_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no_workers(_call: Call) -> Answer:
        return {"columns": COLUMNS, "rows": []}

    async def overview(_call: Call) -> Answer:
        return {"ended": "finished"}

    async def make(_call: Call) -> Answer:
        raise AssertionError("no invite is made")

    routes = [
        Route("GET", "/api/v1/workers", "viewer", no_workers, "Workers."),
        Route("GET", "/api/v1/overview", "viewer", overview, "Overview."),
        Route("POST", "/api/v1/invites", "operator", make, "Make.", body=NewInvite, needs_run=True),
    ]
    over = RunOver("the run is over", cause="it ended: finished", fix="read it")
    async with served(tmp_path, Given(routes=routes, run_over=over)) as page:
        run = run_folder(tmp_path / "run", page.url)
        with pytest.raises(RunOver, match="the run is over") as refused:
            await asyncio.to_thread(invite.make, run=run)
        assert refused.value.fix == "read it"
        await asyncio.to_thread(workers.show, run=run)
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown.startswith("The run has ended (finished)")
    assert "invite" not in shown


def test_a_token_needs_a_name_that_the_audit_log_can_show(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="cannot be named 'Ann'") as caught:
        token.create(role="viewer", name="Ann", run=run)
    assert "--name ann" in caught.value.fix


async def test_token_is_created_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "secrets").mkdir(parents=True)
    (run / "secrets" / "operator.key").write_text(KEY)
    async with served(tmp_path) as page:
        (run / "endpoints.json").write_text(
            json.dumps({"http_url": page.url, "page_url": page.url, "grpc_address": ""})
        )
        await asyncio.to_thread(token.create, role="viewer", name="ann", days=2.0, run=RunOptions(run))
        text = capsys.readouterr().out.strip()
        assert (await page.get("/api/v1/session", text))[1]["who"] == "ann"
        with pytest.raises(MalformedMessage, match="ann"):
            await asyncio.to_thread(token.create, role="viewer", name="ann", run=RunOptions(run))
        await asyncio.to_thread(token.show, run=RunOptions(run))
        assert "ann" in capsys.readouterr().out
        monkeypatch.setenv(TOKEN_VARIABLE, text)  # a viewer's token is not enough
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


def test_token_lines_show_validity() -> None:
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


ONE = {
    "id": "0123456789abcdef",
    "role": "peer",
    "quota": 3,
    "used": 1,
    "expires_unix_s": 86_400.0,
    "note": "Ann",
    "revoked": False,
    "banned": 0,
}


async def test_invites_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    asked: list[Any] = []

    async def make(call: Call) -> Answer:
        asked.append(call.body.model_dump())
        place = "10.0.0.5" if call.body.note == "Ann" else "127.0.0.1"
        text = replace(INVITE, http_url=f"https://{place}:7401", grpc_address=f"{place}:7400").encode()
        return {"id": ONE["id"], "invite": text, "command": f"rollcast peer join {text}"}

    async def read(call: Call) -> Answer:
        asked.append(dict(call.params))
        return {"invites": [ONE]}

    async def put_out(call: Call) -> Answer:
        asked.append(call.body.model_dump())
        return {"done": ["12D3peer"]}

    from coordinator.api.invites import InviteAct, NewInvite

    path = "/api/v1/invites"
    routes = [
        Route("POST", path, "operator", make, "Make.", body=NewInvite),
        Route("GET", path, "viewer", read, "Read."),
        Route("POST", f"{path}/{{id}}/revoke", "operator", read, "Revoke."),
        Route("POST", f"{path}/{{id}}/ban", "operator", put_out, "Ban.", body=InviteAct),
    ]
    async with served(tmp_path, Given(routes=routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(invite.make, quota=3, days=1.0, note="Ann", run=run)
        said = capsys.readouterr()
        assert said.out.startswith("rollcast peer join rollcast1-")
        assert said.err.startswith("Admits 3 machines for 1 day. Send it privately")
        assert "loopback" not in said.err
        await asyncio.to_thread(invite.make, run=run)
        assert "Only processes on this machine can use it" in capsys.readouterr().err
        del asked[-1]
        await asyncio.to_thread(invite.show, run=run, json_output=True)
        assert json.loads(capsys.readouterr().out) == {"invites": [ONE]}
        await asyncio.to_thread(invite.revoke, str(ONE["id"]), run=run)
        assert capsys.readouterr().out == "revoked: 0123456789abcdef\n"
        await asyncio.to_thread(invite.ban, str(ONE["id"]), reason="rubbish", run=run)
        assert capsys.readouterr().out == "banned: 12D3peer\n"
    assert asked == [
        {"role": "peer", "quota": 3, "lifetime_s": 86_400.0, "note": "Ann"},
        {},
        {"id": ONE["id"]},
        {"reason": "rubbish"},
    ]
    with pytest.raises(ConfigError, match="not the id"):
        invite.revoke("../tokens")


@pytest.mark.parametrize(
    ("values", "option"), [({"quota": 0}, "--quota"), ({"days": 0.0}, "--days"), ({"days": 400.0}, "--days")]
)
def test_an_invite_that_admits_nobody_is_refused_by_its_option(values: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        invite.make(**values)
    assert option in caught.value.fix


def test_invite_lines_show_their_state() -> None:
    others = [ONE | {"used": 3}, ONE | {"revoked": True}, ONE | {"revoked": True, "banned": 1}]
    assert [invite.fate_of(one, 0.0) for one in (ONE, *others)] == ["open", "used up", "revoked", "banned"]
    assert invite.fate_of(ONE, 1e6) == "ended"
    (line,) = invite.lines_of([ONE], 0.0)
    assert line == "0123456789abcdef  open      peer     1 of 3      until 1970-01-02 00:00 UTC  Ann"
    assert invite.lines_of([], 0.0) == ["There are no invites yet. Create one with `rollcast invite`."]


def test_a_reputation_is_printed_as_a_card() -> None:
    record = AuditRecord(rollouts=41, tokens=2600, beyond=3, worst_nats=0.02, bound_nats=0.01, sampler="jax-cpu")
    card = card_of_peer(record, "12D3", "attic", banned="", quarantined="sent tokens", share_audited=1.0)
    assert workers.card_lines({"peers": [asdict(card)], "invites": []})[:4] == [
        "peer attic: quarantined, sent tokens",
        "  audited           2,600 tokens in 41 rollouts",
        "  beyond the bound  3 tokens in 0 rollouts, the worst by 0.02 nats (bound: 0.01 nats with jax-cpu)",
        "  trained on        0 of these rollouts",
    ]
    assert len(workers.card_lines({"peers": [], "invites": []})) == 1
