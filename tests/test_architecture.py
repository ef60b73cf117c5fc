"""The house of docs/architecture.md stands: floors, purity and room. ``tests/bench/structure`` plants breaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.structure import rules
from bench.structure.rules import RULES, Rule

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule: Rule) -> None:
    assert list(rule(ROOT)) == []


def test_every_exception_is_still_needed() -> None:
    for name, allowed in rules.IMPURE_ALL_THE_SAME.items():
        path = ROOT / name
        assert path.exists(), name
        assert rules.imported_roots(path) & allowed, f"{name} no longer needs its exception"
    for folder in rules.PURE_FOLDERS:
        assert (ROOT / folder).is_dir(), folder
