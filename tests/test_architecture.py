"""Test the rules of docs/architecture.md on the source tree. ``tests/bench/structure`` plants breaches of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.structure import import_graph, rules
from bench.structure.rules import RULES, Rule

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("rule", RULES)
def test_the_source_tree_keeps_the_rules(rule: Rule) -> None:
    assert list(rule(ROOT)) == []


def test_every_exception_is_still_needed() -> None:
    for name, allowed in rules.IMPURE_ALL_THE_SAME.items():
        path = ROOT / name
        assert path.exists(), name
        assert rules.imported_roots(path) & allowed, f"{name} no longer needs its exception"
    for folder in rules.PURE_FOLDERS:
        assert (ROOT / folder).is_dir(), folder


TOP = "coordinator|peer|learner|capacity|rollcast|bench|tests|configs|deploy|docs"
PATH = re.compile(rf"(?<![\w./-])(?:{TOP})/[\w./-]*\w")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_a_page_for_contributors_names_exists(page: str) -> None:
    named = set(PATH.findall((ROOT / page).read_text()))
    assert len(named) > 50
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_page_lists_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    folders = set(import_graph.count_by_folder(import_graph.find_modules(ROOT))) - {"rollcast"}
    assert [folder for folder in sorted(folders) if f"| `{folder}/` |" not in page] == []
