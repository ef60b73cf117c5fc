"""The headers forbid what a page of ours never needs."""

from __future__ import annotations

from rollcast.web.headers import CONTENT_SECURITY_POLICY, NO_STORE, SECURITY_HEADERS


def test_nothing_inline_and_nothing_from_elsewhere() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    assert {directives[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


def test_caching_is_left_to_who_answers() -> None:
    assert not SECURITY_HEADERS.keys() & NO_STORE.keys()
