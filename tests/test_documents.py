"""Check that links between documents lead somewhere, that the README stays short, and that names to install exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README_LINES_MAX, README_WORDS_MAX = 120, 700
FIRST_SCREEN_LINES = 24
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
# Rollcast is in no package index: a requirement by name alone leads nowhere, or to a stranger's package.
_BY_NAME = re.compile(
    r"(?<![\w./-])rollcast\[[^]\n]*\](?! @)"
    r"|(?:pip|pipx|uv tool|uv) install\b[^\n`]*?(?<![\w./-])rollcast(?![\w\[./-]| @)"
)
# With --no-index, from a folder of wheels. Makefile and .ci/run, which are not listed, ask no index for extras either:
# the checkout is installed.
_BY_NAME_RIGHTLY = {"bench/people/newcomer.py"}
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
    first_screen = "\n".join(text.splitlines()[:FIRST_SCREEN_LINES])
    for other in ("libtorrent", "aria2", "SHARDCAST", "one server"):
        assert other in first_screen, "broadcast is compared with others before a reader scrolls"


def texts_that_people_follow() -> list[Path]:
    folders = ["bench", "capacity", "configs", "coordinator", "deploy", "docs", "examples"]
    folders += ["learner", "peer", "rollcast"]
    suffixes = {".html", ".js", ".md", ".py", ".sbatch", ".sh", ".toml", ".tpl", ".yaml", ".yml", ""}
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    found += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path for path in found if path.is_file() and str(path.relative_to(ROOT)) not in _BY_NAME_RIGHTLY]


def test_no_text_installs_rollcast_by_its_name_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts_that_people_follow()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _BY_NAME.search(line)
    ]
    assert not found, "name a clone ('.[extra]') or a release ('rollcast[extra] @ URL'):\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("line", "leads_nowhere"),
    [
        ("pip install 'rollcast[coordinator,postgres]'", True),
        ("uv tool install --python 3.12 rollcast", True),
        ("install rollcast[p2p], and set link.p2p = true", True),
        ("pip install 'rollcast[peer] @ https://example.org/rollcast-0.1.0-py3-none-any.whl'", False),
        ("rollcast/bin/pip install --editable '.[all]'", False),
        ("pip install ./rollcast", False),
    ],
)
def test_the_check_of_names_tells_them_apart(line: str, leads_nowhere: bool) -> None:
    assert bool(_BY_NAME.search(line)) == leads_nowhere
