"""Test the audit log: acts, refusals, and the limit that keeps callers from filling it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.http import audit
from coordinator.http.audit import AuditLog
from coordinator.http.routes import Answer, Body, Call, Caller, Route
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import MalformedMessage
from tests.coordinator.http.serving import KEY, Given, served

ANN = Caller("ann", "operator")
STRANGER = Caller("", "anyone")


class Wish(Body):
    """The body of the test's act."""

    what: str


async def act(call: Call) -> Answer:
    match call.body.what:
        case "impossible":
            raise MalformedMessage("that cannot be done")
        case "our fault":
            raise KeyError("oops")
    return {"failed": 2}


ACT = Route(
    "POST",
    "/api/v1/acts/{id}",
    "operator",
    act,
    "Do it.",
    body=Wish,
    act="wish",
    outcome=lambda answer: f"{answer['failed']} failed",
)


async def test_every_act_and_refusal_is_written_down(tmp_path: Path) -> None:
    async with served(tmp_path, Given(routes=[ACT])) as page:
        viewer = (await page.post("/api/v1/tokens", {"name": "bob", "access": "viewer"}))[1]["token"]
        path = "/api/v1/acts/7"
        statuses = [
            (await page.post(path, {"what": what}, token))[0]
            for what, token in (
                ("one", KEY),
                ("impossible", KEY),
                ("our fault", KEY),
                ("one", viewer),
                ("one", None),
                ("one", "wrong"),
            )
        ]
        assert statuses == [200, 400, 500, 403, 401, 401]
        rows = [(row.who, row.act, row.subject, row.detail, row.outcome[:20]) for row in await page.audit()]
        assert rows[1:] == [
            ("run's key", "wish", "7", '{"what":"one"}', "2 failed"),
            ("run's key", "wish", "7", '{"what":"impossible"}', "RC305: that cannot b"),
            ("run's key", "wish", "7", '{"what":"our fault"}', "KeyError"),
            ("bob", "wish", path, "", "RC307: this request "),
            ("loopback", "wish", path, "", "RC307: this request "),
            ("", "wish", path, "", "RC307: this request "),
        ]
        _, newest = await page.get("/api/v1/audit?limit=2")
        assert [row["who"] for row in newest["rows"]] == ["", "loopback"]
        _, older = await page.get(f"/api/v1/audit?limit=1&before={newest['rows'][-1]['id']}")
        assert [row["who"] for row in older["rows"]] == ["bob"]


async def test_refusals_are_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "REFUSALS_PER_HOUR", 3)
    now = 0.0
    ledger = Ledger.open(tmp_path / "store")
    log = AuditLog(ledger, lambda: now)
    for _ in range(10):
        await log.refused(STRANGER, "wish", "", "no")
    assert len(await log.rows(None, 100)) == 3
    await log.done(ANN, "wish", "", "x" * 100_000)
    now = 3600.0
    await log.refused(STRANGER, "wish", "", "no")
    (_, last), (_, done), *_ = await log.rows(None, 100)
    assert last.detail == "and 7 earlier refusals that were not recorded"
    assert len(done.detail) == audit.TEXT_LENGTH_MAX
    await ledger.close()


async def test_a_store_that_does_not_answer_is_named_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.http.audit.READ_DEADLINE_S", 0.05)
    async with served(tmp_path, Given()) as page:
        monkeypatch.setattr(Ledger, "audit_rows", lambda *_: asyncio.get_running_loop().create_future())
        status, answer = await page.get("/api/v1/audit")
    assert (status, answer["code"]) == (503, "RC201")
    assert "the audit log" in answer["what"]
