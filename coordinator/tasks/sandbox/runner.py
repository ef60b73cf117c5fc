"""Run one untrusted program and report how it ended. Blocking; for verifier processes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from rollcast.runtime.errors import TaskError

CHILD = str(Path(__file__).with_name("child.py"))
TERMINATE_TIMEOUT_S = 2.0  # for child.py to kill and reap the processes inside
DEATH_TIMEOUT_S = 5.0
READ_BYTES = 64 << 10
FOLDER_BYTES_FILES = 4  # the folder in memory holds this many files of the largest size
REPORT_BYTES_MAX = 4 << 10
UNCONFINED = 125  # exit status of child.py
# A fixed hash seed: a program that depends on it must not pass by luck once and fail when it is scored again.
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

Outcome = Literal["exited", "timeout", "output"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one program. ``full``: refuse to run it if the kernel cannot confine it."""

    wall_s: float
    memory_bytes: int = 512 << 20
    processes_max: int = 8
    output_bytes_max: int = 1 << 20
    file_bytes_max: int = 16 << 20
    full: bool = True


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The end of a program: by itself with ``status`` (128 + n for signal n), at its timeout, or by too much output."""

    outcome: Outcome
    status: int
    stdout: bytes
    stderr: bytes
    missing: Mapping[str, str] = field(default_factory=dict)  # confinements that did not work, and why


def run_python(files: Mapping[str, str], main: str, stdin: bytes, limits: Limits) -> ProgramResult:
    """Run ``main`` of these files with this interpreter, without this process's packages and environment.

    Raises:
        TaskError: limits.full is set and the kernel cannot confine the program, or the sandbox cannot be set up at all.
    """
    folder = tempfile.mkdtemp(prefix="rollcast-sandbox-")
    try:
        command = [sys.executable, "-I", "-B", f"{folder}/{main}"]
        with _file(_order(folder, command, files, limits)) as order, _file(stdin) as given:
            ended = _run(order, given, limits)
    except OSError as error:
        raise TaskError("the sandbox cannot run a program", cause=str(error), fix="see the cause") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if ended.status == UNCONFINED and ended.outcome == "exited" and ended.missing:
        raise _unconfined(ended.missing)
    return ended


def run_pair(judge: Mapping[str, str], program: Mapping[str, str], limits: Limits) -> ProgramResult:
    """Run two programs, each in a sandbox of its own, that talk to each other; return how the first one ended.

    What one writes to standard output the other reads from standard input. Of the first, standard error is kept; of the
    second, nothing is. Both have the files given, of which ``main.py`` is run.

    Raises:
        TaskError: see run_python.
    """
    folders = [tempfile.mkdtemp(prefix="rollcast-sandbox-") for _ in range(2)]
    try:
        orders = [
            _order(folder, [sys.executable, "-I", "-B", f"{folder}/main.py"], files, limits)
            for folder, files in zip(folders, (judge, program), strict=True)
        ]
        with _file(orders[0]) as first, _file(orders[1]) as second:
            return _run_pair(first, second, limits)
    except OSError as error:
        raise TaskError("the sandbox cannot run a program", cause=str(error), fix="see the cause") from None
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _run_pair(judge_order: IO[bytes], program_order: IO[bytes], limits: Limits) -> ProgramResult:
    from_judge, to_program = os.pipe()
    from_program, to_judge = os.pipe()
    judge = program = None
    try:
        judge = _start(judge_order, from_program, to_program, subprocess.PIPE)
        program = _start(program_order, from_judge, to_judge, subprocess.DEVNULL)
    finally:
        for descriptor in (from_judge, to_program, from_program, to_judge):
            os.close(descriptor)
        if program is None and judge is not None:
            judge.end()
    try:
        outcome, outputs = _watch(judge.process, limits)
    finally:
        judge.end()
        program.end()
    for one in (judge, program):
        if one.process.returncode == UNCONFINED and one.missing:
            raise _unconfined(one.missing)
    return ProgramResult(outcome, judge.process.returncode, *outputs, judge.missing)


def _file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (our caller closes it)
    file.write(content)
    file.seek(0)
    return file


def _order(folder: str, command: Sequence[str], files: Mapping[str, str], limits: Limits) -> bytes:
    interpreter = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent.parent)} - {"/"}
    order = {
        "folder": folder,
        "folder_bytes": max(1 << 20, FOLDER_BYTES_FILES * limits.file_bytes_max),
        "files": dict(files),
        "command": list(command),
        "environment": ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
        "readable": [*sorted(interpreter), "/usr", "/lib", "/lib64", "/bin"],
        "cpu_s": math.ceil(limits.wall_s) + 1,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": max(limits.file_bytes_max, sum(len(text.encode(errors="replace")) for text in files.values())),
        "processes": limits.processes_max,
        "full": limits.full,
    }
    return json.dumps(order).encode()


@dataclass(slots=True)
class _Started:
    """A process of child.py; ``missing`` is known once it has ended."""

    process: subprocess.Popen[bytes]
    report: int
    missing: Mapping[str, str] = field(default_factory=dict)

    def end(self) -> None:
        """Kill the program completely, and read which confinements were missing."""
        try:
            _end(self.process)
        finally:
            self.missing = _missing(os.read(self.report, REPORT_BYTES_MAX))
            os.close(self.report)


def _run(order: IO[bytes], stdin: IO[bytes], limits: Limits) -> ProgramResult:
    started = _start(order, stdin.fileno(), subprocess.PIPE, subprocess.PIPE)
    try:
        outcome, outputs = _watch(started.process, limits)
    finally:
        started.end()
    return ProgramResult(outcome, started.process.returncode, *outputs, started.missing)


def _start(order: IO[bytes], stdin: int, stdout: int, stderr: int) -> _Started:
    # The child takes the order as one descriptor and its report pipe as the next.
    order_fd, report_read, report_write = _neighbours(order.fileno())
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", CHILD, str(order_fd)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=ENVIRONMENT,
            pass_fds=(order_fd, report_write),
            start_new_session=True,
        )
    except BaseException:
        os.close(report_read)
        raise
    finally:
        os.close(order_fd)
        os.close(report_write)
    return _Started(process, report_read)


def _neighbours(order: int) -> tuple[int, int, int]:
    """Return (a duplicate of the order, the report's reading end, its writing end numbered right after the first)."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    low = high = -1
    while low < 0 or high != low + 1:  # only the kernel can check that a number is free and take it in one step
        for one in (low, high):
            if one >= 0:
                os.close(one)
        low = fcntl.fcntl(order, fcntl.F_DUPFD_CLOEXEC, low + 1)
        high = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, low + 1)
    os.close(write)
    return low, read, high


def _watch(process: subprocess.Popen[bytes], limits: Limits) -> tuple[Outcome, tuple[bytes, bytes]]:
    """Read the program's output until it closes its streams, its time is over, or it has printed too much."""
    ends_s = time.monotonic() + limits.wall_s
    outputs = (bytearray(), bytearray())
    outcome: Outcome = "exited"
    with selectors.DefaultSelector() as selector:
        for stream, output in zip((process.stdout, process.stderr), outputs, strict=True):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, output)
        while selector.get_map():
            left_s = ends_s - time.monotonic()
            if left_s <= 0.0:
                outcome = "timeout"
                break
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
            if sum(map(len, outputs)) > limits.output_bytes_max:
                outcome = "output"
                break
    if outcome == "exited":
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, ends_s - time.monotonic()))
        outcome = "exited" if process.returncode is not None else "timeout"
    return outcome, (bytes(outputs[0]), bytes(outputs[1]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program completely: child.py ends and reaps all processes inside before it ends itself."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(TERMINATE_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEATH_TIMEOUT_S)


def _missing(report: bytes) -> dict[str, str]:
    try:
        return dict(json.loads(report))
    except ValueError:
        return {}


def _unconfined(missing: Mapping[str, str]) -> TaskError:
    return TaskError(
        "this machine cannot confine untrusted programs",
        cause="the kernel does not provide " + "; ".join(f"{name} ({why})" for name, why in sorted(missing.items())),
        fix="use a kernel with Landlock (5.13 or newer, in its list of security modules), allow unprivileged user "
        'namespaces or seccomp, or set task.check.isolation = "best" where you trust the programs',
    )
