from __future__ import annotations

import pytest

from peer.donor.page.auth import new_token, refusal

HERE = {"Host": "127.0.0.1:7000"}
KNOWN = {**HERE, "Authorization": "Bearer secret"}
ACT = {**KNOWN, "Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", HERE, None),
        ("GET", "/web/parts.js", {"Host": "localhost:7000"}, None),
        ("GET", "/", {}, 421),
        ("GET", "/", {"Host": "evil.example:7000"}, 421),  # a name of theirs that leads to 127.0.0.1
        ("GET", "/", {"Host": "127.0.0.1:7001"}, 421),
        ("POST", "/", HERE, 405),
        ("GET", "/api/v1/report", KNOWN, None),
        ("GET", "/api/v1/report", HERE, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Bearer wrong"}, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Basic secret"}, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Bearer \u00e9"}, 401),
        ("POST", "/api/v1/acts", ACT, None),
        ("POST", "/api/v1/acts", {**ACT, "Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7000"}, None),
        ("POST", "/api/v1/acts", {**ACT, "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/v1/acts", {**ACT, "Origin": "http://evil.example"}, 403),
        ("POST", "/api/v1/acts", {**KNOWN, "Content-Type": "text/plain"}, 415),
        ("POST", "/api/v1/acts", KNOWN, 415),
        ("PUT", "/api/v1/acts", ACT, 405),
    ],
)
def test_who_may_do_what(method: str, path: str, headers: dict[str, str], status: int | None) -> None:
    found = refusal(method, path, headers, token="secret", port=7000)
    assert (None if found is None else found[0]) == status


def test_tokens_are_long_and_never_the_same() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 43
