"""Test authentication: roles; tokens shown once, stored as hashes, revoked at once; and cross-site requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http import tokens
from coordinator.http.auth import KEY_NAME, LOOPBACK, STRANGER, Gate, check_access, check_site
from coordinator.http.routes import Access, Caller
from coordinator.http.tokens import TokenBook, operator_key
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import MalformedMessage, NotAllowed
from tests.coordinator.http.serving import KEY, served

ANN = Caller("ann", "operator")


class Tokens:
    def caller_of(self, token: str) -> Caller | None:
        return ANN if token == "anns" else None


OPEN, CLOSED = Gate("key", Tokens(), open_reading=True), Gate("key", Tokens(), open_reading=False)


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_tokens_name_their_callers() -> None:
    assert OPEN.caller(bearing("key")) == Caller(KEY_NAME, "admin")
    assert OPEN.caller({"Authorization": "bearer  anns "}) == ANN
    assert (OPEN.caller({}), CLOSED.caller({})) == (LOOPBACK, STRANGER)
    assert OPEN.caller({"Authorization": "Invite anns"}) == LOOPBACK


@given(st.text())
def test_a_wrong_token_makes_a_stranger_even_where_reading_is_open(token: str) -> None:
    if token.strip() not in ("key", "anns"):
        assert OPEN.caller(bearing(token)) == CLOSED.caller(bearing(token)) == STRANGER


@pytest.mark.parametrize(
    ("caller", "needed", "allowed"),
    [
        (LOOPBACK, "viewer", True),
        (LOOPBACK, "operator", False),
        (ANN, "operator", True),
        (ANN, "admin", False),
        (STRANGER, "anyone", True),
        (STRANGER, "viewer", False),
    ],
)
def test_roles(caller: Caller, needed: Access, *, allowed: bool) -> None:
    if allowed:
        check_access(caller, needed)
    else:
        with pytest.raises(NotAllowed, match=needed):
            check_access(caller, needed)


OWN = {"Host": "run.example:7401", "Origin": "https://run.example:7401"}


@pytest.mark.parametrize(
    ("method", "headers", "allowed"),
    [
        ("POST", OWN, True),
        ("POST", {**OWN, "Sec-Fetch-Site": "same-origin"}, True),
        ("POST", {"Host": "run.example:7401"}, True),  # not a browser
        ("POST", {**OWN, "Origin": "https://evil.example"}, False),
        ("POST", {**OWN, "Origin": "https://run.example:7402"}, False),
        ("POST", {**OWN, "Origin": "null"}, False),
        ("POST", {**OWN, "Origin": "https://[run"}, False),
        ("POST", {"Host": "h", "Sec-Fetch-Site": "cross-site"}, False),
        ("POST", {"Host": "h", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),  # a form
        ("GET", {"Host": "h", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ("GET", {"Host": "h", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),  # a link
        ("GET", {"Host": "h", "Sec-Fetch-Site": "none"}, True),  # a typed address
    ],
)
def test_other_sites_are_refused(method: str, headers: dict[str, str], *, allowed: bool) -> None:
    if allowed:
        check_site(method, headers)
    else:
        with pytest.raises(NotAllowed):
            check_site(method, headers)


PATH = "/api/v1/tokens"


async def test_a_token_works_until_it_is_revoked(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        status, made = await page.post(PATH, {"name": "ann", "access": "operator", "days": 1})
        assert status == 200
        assert made["token"].startswith("rct_")
        _, session = await page.get("/api/v1/session", made["token"])
        assert (session["who"], session["access"]) == ("ann", "operator")
        assert (await page.get(PATH, made["token"]))[0] == 403
        _, listed = await page.get(PATH, KEY)
        assert made["token"] not in str(listed)
        assert [(one["name"], one["holds"]) for one in listed["tokens"]] == [("ann", True)]
        assert await page.post(f"{PATH}/{made['id']}/revoke", {}) == (200, {"id": made["id"], "name": "ann"})
        assert (await page.get("/api/v1/session", made["token"]))[0] == 401
        assert (await page.post(f"{PATH}/{made['id']}/revoke", {}))[0] == 400
        assert made["token"].encode() not in (tmp_path / "store.sqlite-wal").read_bytes()


@pytest.mark.parametrize(
    "values",
    [
        {"name": "Ann", "access": "viewer"},
        {"name": "loopback", "access": "viewer"},
        {"name": "ann", "access": "anyone"},
        {"name": "ann", "access": "viewer", "days": 0},
        {"name": "ann", "access": "viewer", "days": float("1e9")},
        {"name": "ann", "access": "viewer", "more": 1},
        {},
    ],
)
async def test_invalid_token_requests_are_refused(tmp_path: Path, values: dict[str, object]) -> None:
    async with served(tmp_path) as page:
        status, said = await page.post(PATH, values)
        assert (status, said["code"]) == (400, "RC305")


@pytest.mark.parametrize("number", ["x", "0", "-1", "9" * 40, "\u0663", "1.0"])
async def test_numbers_that_are_none(tmp_path: Path, number: str) -> None:
    async with served(tmp_path) as page:
        assert (await page.post(f"{PATH}/{number}/revoke", {}))[0] == 400


async def test_tokens_outlive_a_restart_and_expire(tmp_path: Path) -> None:
    now = 100.0
    ledger = Ledger.open(tmp_path / "store")
    book = TokenBook(ledger, lambda: now)
    _, text = await book.create("ann", "viewer", 10.0)
    with pytest.raises(MalformedMessage, match="ann"):
        await book.create("ann", "viewer", 10.0)
    again = TokenBook(ledger, lambda: now)
    await again.load()
    assert again.caller_of(text) == Caller("ann", "viewer")
    now = 110.0
    assert again.caller_of(text) is None
    stored, _ = await again.create("ann", "admin", None)  # the name is free again
    assert [(token.name, holds) for token, holds in again.all()] == [("ann", False), ("ann", True)]
    assert stored.expires_unix_s is None
    await ledger.close()


async def test_tokens_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 4)  # each is a commit
    ledger = Ledger.open(tmp_path / "store")
    book = TokenBook(ledger)
    for number in range(4):
        await book.create(f"t{number}", "viewer", None)
    with pytest.raises(MalformedMessage, match="there are 4 valid tokens"):
        await book.create("one-more", "viewer", None)
    await ledger.close()


def test_operator_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = operator_key(tmp_path)
    assert len(key) > 32
    assert operator_key(tmp_path) == key
    assert (tmp_path / "operator.key").stat().st_mode & 0o077 == 0
