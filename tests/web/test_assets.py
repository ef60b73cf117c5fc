"""Test static files: compression, caching and content types, and headers that forbid what pages never need."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from rollcast.web.assets import STATIC, Assets
from rollcast.web.headers import CONTENT_SECURITY_POLICY, NO_STORE, SECURITY_HEADERS

PAGES = Path(__file__).parents[2] / "coordinator" / "pages"


@pytest.fixture
def assets(tmp_path: Path) -> Assets:
    (tmp_path / "parts").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "parts" / "card.js").write_text("export const card = 1;" * 50)
    (tmp_path / "LICENSES.md").write_text("not served")
    return Assets.of({"/": tmp_path, "/web/": tmp_path / "parts"})


def test_urls_are_prefix_and_path(assets: Assets) -> None:
    assert set(assets.urls) == {"/", "/parts/card.js", "/web/card.js"}
    assert assets.reply("/LICENSES.md") is None
    assert assets.reply("/../pyproject.toml") is None


def test_gzip_is_sent_only_if_accepted(assets: Assets) -> None:
    packed, plain = assets.reply("/web/card.js", accept_encoding="br, gzip"), assets.reply("/web/card.js")
    assert packed is not None
    assert plain is not None
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body)
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Content-Type"].startswith("text/javascript")
    refused = assets.reply("/web/card.js", accept_encoding="gzip;q=0, identity")
    assert refused == plain


def test_unchanged_files_are_not_sent_again(assets: Assets) -> None:
    first = assets.reply("/")
    assert first is not None
    again = assets.reply("/", if_none_match=f'"other", W/{first.headers["ETag"]}')
    assert again is not None
    assert (again.status, again.body) == (304, b"")
    changed = assets.reply("/", if_none_match='"other"')
    assert changed is not None
    assert changed.status == 200


def dashboard() -> Assets:
    return Assets.of({"/": PAGES, "/web/": STATIC})


def test_dashboard_download_is_small() -> None:
    assert dashboard().gzip_bytes < 150_000


def test_every_import_and_link_is_served() -> None:
    """A mistyped name in a module would otherwise show only once a page is opened."""
    known, named = dashboard(), re.compile(r'(?:from |import |import\(|src=|href=)"([./][^"#]*[.](?:js|css|svg))"')
    for folder, prefix in ((PAGES, "/"), (STATIC, "/web/")):
        for path in (*folder.glob("*.js"), *folder.glob("*.html")):
            for name in named.findall(path.read_text()):
                url = name if name.startswith("/") else prefix + name.removeprefix("./")
                assert known.reply(url) is not None, f"{path.name} asks for {name}"


def test_pages_load_nothing_from_other_hosts() -> None:
    for path in (*PAGES.glob("*"), *STATIC.glob("*.*")):
        found = re.findall(r"https?://(?!www\.w3\.org/)[^\s\"'`]+", path.read_text())
        assert not found, f"{path.name} names {found}"


def test_pages_have_no_inline_code() -> None:
    for path in PAGES.glob("*.html"):
        page = path.read_text()
        assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\bsrc=)", page), path.name


def test_policy_forbids_inline_code_and_other_hosts() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    assert {directives[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


def test_cache_control_is_left_to_the_sender() -> None:
    assert not SECURITY_HEADERS.keys() & NO_STORE.keys()
