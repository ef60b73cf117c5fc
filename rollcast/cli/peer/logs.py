"""`rollcast peer logs`: show the peer's log. Imports little, so that it works when the rest does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from rollcast.cli.options import Json
from rollcast.cli.peer.folders import StateFolder, state_folder
from rollcast.runtime.errors import DaemonAway

_TAIL_BYTES_MAX = 4 << 20
_LOOK_S = 0.5
_UNIT = "rollcast-peer.service"
_SYSTEM_UNIT_FILE = Path("/etc/systemd/system") / _UNIT
_SHOWN_APART = ("timestamp", "level", "event", "role", "peer_id")

Follow = Annotated[bool, Parameter(name=["--follow", "-f"], negative=())]
Lines = Annotated[int, Parameter(name=["--lines", "-n"])]


def logs(*, follow: Follow = False, lines: Lines = 50, state: StateFolder = None, json_output: Json = False) -> int:
    """Show the newest lines of the peer's log: this user's log file, or the journal of the machine-wide service.

    Parameters
    ----------
    follow
        Keep printing new lines until Ctrl-C.
    lines
        Number of lines to show.
    json_output
        Print one JSON object per line, as they were written.
    """
    path = log_file(state or state_folder())
    if not path.exists():
        return _journal(follow, lines, path)
    try:
        for line in tail(path, max(0, lines)):
            print(line if json_output else readable(line))
        if follow:
            for line in followed(path):
                print(line if json_output else readable(line), flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def log_file(folder: Path) -> Path:
    """Return the log file of a peer that `rollcast peer join` started."""
    return folder / "logs" / "peer.log"


def tail(path: Path, count: int) -> list[str]:
    """Return the newest lines, at most 4 MiB of them."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES_MAX))
        whole = file.read(_TAIL_BYTES_MAX).decode("utf-8", errors="replace").splitlines()
    return whole[-count:] if count else []


def followed(path: Path) -> Iterator[str]:
    """Yield new lines as they are written, across rotations of the log, until interrupted."""
    file = path.open("rb")
    file.seek(0, os.SEEK_END)
    rest = b""
    try:
        while True:
            new = file.read(_TAIL_BYTES_MAX)
            *complete, rest = (rest + new).split(b"\n")
            yield from (line.decode("utf-8", errors="replace") for line in complete)
            if new:
                continue
            time.sleep(_LOOK_S)
            if _was_replaced(path, file.fileno()):
                file.close()
                file = path.open("rb")
    finally:
        file.close()


def _was_replaced(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino != os.fstat(descriptor).st_ino
    except OSError:
        return False  # the log is being rotated: the new file does not exist yet


def readable(line: str) -> str:
    """Return a JSON line in a readable form, and any other line as it is; both without control characters."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return _printable(line)
    at = str(values.get("timestamp", ""))[:19].replace("T", " ")
    rest = " ".join(f"{key}={_short(value)}" for key, value in values.items() if key not in _SHOWN_APART)
    return _printable(f"{at} {values.get('level', ''):<8}{values.get('event', '')}  {rest}".rstrip())


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _printable(text: str) -> str:
    """Replace control characters: text from other peers must not be able to move the cursor."""
    return "".join(character if character.isprintable() or character == "\t" else " " for character in text)


def _journal(follow: bool, lines: int, path: Path) -> int:
    if not _SYSTEM_UNIT_FILE.exists() or shutil.which("journalctl") is None:
        fix = (
            "start a peer with `rollcast peer join`; one in a terminal logs there, one in a container to `docker logs`"
        )
        raise DaemonAway(f"there is no log at {path}", fix=fix)
    command = ["journalctl", "--unit", _UNIT, "--lines", str(lines), "--no-pager", "--output", "cat"]
    sys.stdout.flush()
    try:
        return subprocess.run([*command, *(["--follow"] if follow else [])], check=False).returncode
    except KeyboardInterrupt:
        return 0
