"""Which software this is: the release, and the commit where it runs from a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rollcast import __version__


def software_version() -> str:
    """For example ``0.1.0 (commit 1a2b3c4)``; without the commit when it was installed from a wheel."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return __version__
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return __version__
    commit = result.stdout.strip()
    return f"{__version__} (commit {commit})" if result.returncode == 0 and commit else __version__
