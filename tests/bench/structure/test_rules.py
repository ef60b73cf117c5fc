from __future__ import annotations

from pathlib import Path

import pytest

from bench.structure import rules
from bench.structure.rules import RULES, Rule


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a small tree in which every folder says what belongs there."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(root).parents:
            init = root / folder / "__init__.py"
            if str(folder) != "." and not init.exists():
                init.write_text('"""Hold something."""\n')
    return root


@pytest.mark.parametrize(
    ("rule", "files", "seen"),
    [
        (
            rules.relative_imports,
            {"peer/a.py": "from . import b", "peer/b.py": ""},
            "peer/a.py, line 1: relative import",
        ),
        (
            rules.forbidden_imports,
            {"rollcast/wire/a.py": "from peer.b import C", "peer/b.py": ""},
            "rollcast.wire.a must not import peer.b",
        ),
        (
            rules.forbidden_imports,
            {"learner/a.py": "import peer.b", "peer/b.py": ""},
            "learner.a must not import peer.b",
        ),
        (
            rules.forbidden_imports,
            {"coordinator/a.py": "def late():\n    import jax.numpy"},
            "coordinator/a.py must not import jax",
        ),
        (
            rules.circles,
            {"peer/links/a.py": "import peer.relay.b", "peer/relay/b.py": "import peer.links.a"},
            "these folders import each other: peer/links, peer/relay",
        ),
        (rules.impurities, {"peer/relay/core/a.py": "import time"}, "peer/relay/core/a.py must not import time"),
        (
            rules.impurities,
            {"peer/worker/core.py": "import asyncio"},
            "peer/worker/core.py must not import asyncio",
        ),
        (
            rules.impurities,
            {"peer/worker/pacing.py": '"""Decide when to wait. Pure."""\nfrom random import random'},
            "peer/worker/pacing.py must not import random",
        ),
        (
            rules.full_folders,
            {f"peer/links/m{number}.py": "" for number in range(16)},
            "peer/links holds 16 modules",
        ),
        (
            rules.folders_without_a_sentence,
            {"peer/links/a.py": "", "peer/links/__init__.py": ""},
            "peer/links/__init__.py does not say what belongs there",
        ),
    ],
)
def test_a_planted_breach_is_seen(tmp_path: Path, rule: Rule, files: dict[str, str], seen: str) -> None:
    assert list(rule(plant(tmp_path, files))) == [seen]


def test_what_is_in_order_is_left_alone(tmp_path: Path) -> None:
    files = {
        "rollcast/wire/ids.py": "",
        "peer/relay/core/core.py": "from rollcast.wire.ids import PeerId",
        "peer/relay/relay.py": "import asyncio\nfrom peer.relay.core.core import RelayCore",
        "peer/service.py": "from peer.relay.relay import Relay",
        "capacity/planner/planner.py": "import time",
    }
    root = plant(tmp_path, files)
    assert [line for rule in RULES for line in rule(root)] == []
