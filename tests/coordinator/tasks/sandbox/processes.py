"""Find the sandboxes of one test among those of tests that run at the same time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """For sandboxes to be made in: programs in them are another user, who must get through to them."""
    folder = Path(tempfile.mkdtemp(prefix="rollcast-test-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alive(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder) in command:
            found.append(command)
    return found
