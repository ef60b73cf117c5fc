"""Determine the software version: the release, and the commit if it runs from a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rollcast import __version__


def software_version() -> str:
    """Return for example ``0.1.0 (commit 1a2b3c4)``, or only ``0.1.0`` if it was installed from a wheel."""
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
