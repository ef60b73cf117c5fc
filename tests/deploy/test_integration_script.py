"""Check what `.ci/run` and the Makefile install, and in which order."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_compiler_is_there_before_the_first_command_that_needs_one() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.index("install gcc libc6-dev python3-dev") < script.index("make demo")


def test_every_package_is_installed_in_a_known_release() -> None:
    """From constraints.txt or by an exact version, so that today's checkout installs the same next year."""
    for path in (ROOT / "Makefile", ROOT / ".ci" / "run"):
        for line in re.sub(r"\\\n", " ", path.read_text()).splitlines():
            if re.search(r"pip install\b", line):
                assert "--constraint constraints.txt" in line or "==" in line, f"{path.name}: {line.strip()}"
