"""Find the sandboxes of one test among those of tests that run at the same time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder for sandboxes that other users can enter, because programs run as another user."""
    folder = Path(tempfile.mkdtemp(prefix="rollcast-test-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alive(folder: Path) -> list[str]:
    """Return the command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder) in command:
            found.append(command)
    return found
