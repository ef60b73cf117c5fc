"""`rollcast peer logs`: what this machine's peer wrote down. Light: it must be there when nothing else is."""

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
    """Show the end of the log: the file of this user's peer, or the journal of the whole machine's service.

    Parameters
    ----------
    follow
        go on until Ctrl-C.
    lines
        how many of the newest.
    json_output
        one JSON object a line, as they were written.
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
    """Where a peer that was started by `rollcast peer join` writes."""
    return folder / "logs" / "peer.log"


def tail(path: Path, count: int) -> list[str]:
    """The newest lines, at most 4 MiB of them."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES_MAX))
        whole = file.read(_TAIL_BYTES_MAX).decode("utf-8", errors="replace").splitlines()
    return whole[-count:] if count else []


def followed(path: Path) -> Iterator[str]:
    """Lines as they come, over the log's rotations, until interrupted."""
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
        return False  # between two files


def readable(line: str) -> str:
    """A line of JSON as one for people; anything else as it is, without control characters."""
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
    """Peers' words are in it: nothing of theirs may move the cursor."""
    return "".join(character if character.isprintable() or character == "\t" else " " for character in text)


def _journal(follow: bool, lines: int, path: Path) -> int:
    if not _SYSTEM_UNIT_FILE.exists() or shutil.which("journalctl") is None:
        fix = (
            "start a peer with `rollcast peer join`; one in a terminal logs to it, one in a container to `docker logs`"
        )
        raise DaemonAway(f"there is no log at {path}", fix=fix)
    command = ["journalctl", "--unit", _UNIT, "--lines", str(lines), "--no-pager", "--output", "cat"]
    sys.stdout.flush()
    try:
        return subprocess.run([*command, *(["--follow"] if follow else [])], check=False).returncode
    except KeyboardInterrupt:
        return 0
