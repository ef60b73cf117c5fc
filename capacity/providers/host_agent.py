"""Start, stop and list workers on the machine where this program runs: `python -m capacity.providers.host_agent`.

The agent reads one request as JSON from standard input, writes one answer as JSON to standard output, and ends. Locally
it is a child process; on other machines ssh runs it. Its arguments carry nothing secret. Each worker has a folder named
by its tag. The agent uses only the standard library, so that it starts quickly.

A worker's process is the one that holds the lock of the worker's folder. The agent signals it only if pid, start time
and boot are those that the process recorded under the lock, and through a pidfd, which never refers to another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capacity.providers.launch import LOCK, LOG, PROCESS, STOPPED, boot_id, start_ticks, write_durably

REQUEST_BYTES_MAX = 1 << 20
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_FILE = re.compile(r"[a-z][a-z0-9-]{0,31}\.(toml|txt)")
_POLL_S = 0.05
_KILL_S = 5.0
_LOG_TAIL_BYTES = 2000


class Refused(Exception):
    """The request cannot be carried out; the message is for people."""


def main() -> int:
    """Answer the request on standard input; return 0, because errors are part of the answer."""
    try:
        request = json.loads(sys.stdin.buffer.read(REQUEST_BYTES_MAX + 1))
        answer = answer_to(request)
    except Refused as error:
        answer = {"error": str(error)}
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)
    return 0


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request.

    Raises:
        Refused: the request cannot be carried out.
        OSError: the operating system refuses.
    """
    root = Path(request["folder"]).expanduser()
    match request["do"]:
        case "start":
            return start(_worker_folder(root, request["tag"]), request)
        case "stop":
            return stop(_worker_folder(root, request["tag"]), float(request["grace_s"]))
        case "list":
            return list_workers(root, str(request["run_id"]))
        case other:
            raise Refused(f"{other!r} is no request")


def _worker_folder(root: Path, tag: str) -> Path:
    if not _TAG.fullmatch(tag):
        raise Refused(f"{tag!r} is no tag")
    return root / tag


# -------------------------------------------------------------------- start


def start(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Start a worker unless it runs already, and return its tag, pid and start time.

    Raises:
        Refused: the worker has ended before, a file's name is not allowed, or it does not start within ``wait_s``.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_locked(folder):
        if (folder / STOPPED).exists() or (folder / PROCESS).exists():
            raise Refused(f"this worker has ended, and its tag is not used again{_last_words(folder)}")
        for name, text in request["files"].items():
            if not _FILE.fullmatch(name):
                raise Refused(f"{name!r} is no file of a worker")
            write_durably(folder / name, str(text).replace("{folder}", str(folder)).encode())
        _launch(folder, [str(part).replace("{folder}", str(folder)) for part in request["program"]], request["systemd"])
    return _wait_for_process(folder, float(request["wait_s"]))


def _launch(folder: Path, program: list[str], systemd: str) -> None:
    """Launch the program as a unit of the user's systemd, or else as a process in a session of its own.

    A unit outlives this login session and its cgroup.
    """
    python = [sys.executable, "-P", "-m", "capacity.providers.launch", str(folder), *_own_python(program)]
    if systemd == "always" or (systemd == "auto" and _has_user_systemd()):
        log = folder / LOG
        properties = [f"StandardOutput=append:{log}", f"StandardError=append:{log}", "Nice=19"]
        options = [f"--property={one}" for one in properties]
        environment = [f"--setenv=PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
        unit = f"--unit=rollcast-{folder.name}"
        command = ["systemd-run", "--user", "--collect", "--quiet", unit, *options, *environment, "--", *python]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        if done.returncode:
            raise Refused(f"systemd-run: {done.stderr.decode(errors='replace').strip()[:500]}")
        return
    with (folder / LOG).open("ab") as output:
        subprocess.Popen(python, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def _own_python(program: list[str]) -> list[str]:
    """Replace a leading "{python}" by the interpreter that runs this agent."""
    return [sys.executable, *program[1:]] if program[0] == "{python}" else program


def _has_user_systemd() -> bool:
    """Return whether the user's service manager answers: it keeps its units running after this session logs out."""
    if shutil.which("systemd-run") is None:
        return False
    try:
        command = ["systemctl", "--user", "show-environment"]
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _wait_for_process(folder: Path, wait_s: float) -> dict[str, Any]:
    """Return the worker once its process has recorded itself under the lock.

    Raises:
        Refused: there is no such record after ``wait_s``, or the process that made it has ended.
    """
    if not _until((folder / PROCESS).exists, wait_s):
        raise Refused(f"the worker did not start within {wait_s:g} s{_last_words(folder)}")
    if not is_locked(folder):
        raise Refused(f"the worker ended as soon as it had started{_last_words(folder)}")
    return _running(folder)


# -------------------------------------------------------------------- stop


def stop(folder: Path, grace_s: float) -> dict[str, Any]:
    """End a worker and prevent it from starting; keep its log, and remove its keys, invite and versions.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises:
        Refused: the process does not end, or the recorded process is not the worker's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a start may be in flight: STOPPED must precede it
    write_durably(folder / STOPPED, b"")
    if is_locked(folder):
        _until(lambda: (folder / PROCESS).exists() or not is_locked(folder), _KILL_S)
        _signal(folder, signal.SIGTERM, grace_s)
        _signal(folder, signal.SIGKILL, _KILL_S)
        if is_locked(folder):
            raise Refused("the worker's process does not end")
    for name in ("state", "invite.txt"):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return {}


def _signal(folder: Path, number: signal.Signals, wait_s: float) -> None:
    """Signal the worker's process if the pid is still its own, and wait up to ``wait_s`` for its end."""
    if not is_locked(folder):
        return
    process = json.loads((folder / PROCESS).read_text())
    pid = int(process["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Checked with the descriptor open, because from here on the descriptor refers to this process and no other.
        if process["boot_id"] != boot_id() or start_ticks(pid) != process["start_ticks"]:
            raise Refused(f"process {pid} is not the worker's, so it gets no signal")
        signal.pidfd_send_signal(descriptor, number)
        select.select([descriptor], [], [], wait_s)
        _until(lambda: not is_locked(folder), 1.0)  # its threads let go of the lock a moment later
    except (ProcessLookupError, FileNotFoundError):
        return
    finally:
        os.close(descriptor)


# -------------------------------------------------------------------- list


def list_workers(root: Path, run_id: str) -> dict[str, Any]:
    """Return the workers of one run whose process lives."""
    found = []
    for folder in sorted(root.iterdir()) if root.exists() else []:
        if folder.name.startswith(f"{run_id}.") and is_locked(folder) and (folder / PROCESS).exists():
            with contextlib.suppress(OSError, ValueError, KeyError):
                found.append(_running(folder))
    return {"running": found}


def _running(folder: Path) -> dict[str, Any]:
    process = json.loads((folder / PROCESS).read_text())
    return {"tag": folder.name, "pid": int(process["pid"]), "started_unix_s": float(process["started_unix_s"])}


# -------------------------------------------------------------------- shared


def is_locked(folder: Path) -> bool:
    """Return whether a worker's process lives, which holds the folder's lock."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _until(condition: Callable[[], bool], wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _last_words(folder: Path) -> str:
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; its log ends: {text}" if text else ""


if __name__ == "__main__":
    sys.exit(main())
