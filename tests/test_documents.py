"""Check that links between documents lead somewhere, and that the README stays short."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README_LINES_MAX, README_WORDS_MAX = 120, 720
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_CODE_BLOCK = re.compile(r"^```.*?^```|^    .*?$", re.DOTALL | re.MULTILINE)


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for line in re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines():
        if line.startswith("#"):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_documents_leads_somewhere(document: Path) -> None:
    lost = []
    for target, anchor in _LINK.findall(_CODE_BLOCK.sub("", document.read_text())):
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            lost.append(f"{target}#{anchor}")
    assert not lost


def test_the_readme_is_read_in_a_minute() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= README_LINES_MAX
    assert len(text.split()) <= README_WORDS_MAX
