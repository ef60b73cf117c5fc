"""Who may what, and what a browser is not tricked into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http.auth import KEY_NAME, LOOPBACK, STRANGER, Gate, check_access, check_site
from coordinator.http.routes import Access, Caller
from rollcast.runtime.errors import NotAllowed

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
        ("POST", {"Host": "run.example:7401"}, True),  # no browser
        ("POST", {**OWN, "Origin": "https://evil.example"}, False),
        ("POST", {**OWN, "Origin": "https://run.example:7402"}, False),
        ("POST", {**OWN, "Origin": "null"}, False),
        ("POST", {**OWN, "Origin": "https://[run"}, False),
        ("POST", {"Host": "h", "Sec-Fetch-Site": "cross-site"}, False),
        ("POST", {"Host": "h", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),  # a form
        ("GET", {"Host": "h", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ("GET", {"Host": "h", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),  # a link
        ("GET", {"Host": "h", "Sec-Fetch-Site": "none"}, True),  # typed
    ],
)
def test_other_sites_are_refused(method: str, headers: dict[str, str], *, allowed: bool) -> None:
    if allowed:
        check_site(method, headers)
    else:
        with pytest.raises(NotAllowed):
            check_site(method, headers)
