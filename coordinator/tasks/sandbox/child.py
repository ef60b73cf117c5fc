"""Confine this process, then become the untrusted program. Started by runner.py as `python -I -S child.py FD`.

FD holds the order as JSON. Which confinements are missing goes back through the next descriptor, as one JSON line,
before the program starts. Where process namespaces work there are three processes: this one outside, process 1 inside,
whose end ends all others, and the program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # imports confine.py alone, nothing of the package

import confine  # type: ignore[import-not-found]

DEVICES_READ = ("/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache", "/etc/localtime")


def main() -> int:
    """Confine, run the program, and return its exit status."""
    order_fd = int(sys.argv[1])
    with os.fdopen(order_fd) as file:
        order = json.load(file)
    report = order_fd + 1
    missing: dict[str, str] = {}
    if os.getuid() == 0:
        os.chown(order["folder"], confine.NOBODY, confine.NOBODY)
        attempt(missing, "interpreter", lambda: confine.show_to_others(order["readable"]))
        confine.become_nobody()
    confine.die_with_parent()
    spare = confine.own_tasks()
    confined = attempt(missing, "namespaces", confine.enter_namespaces)
    if not confined:
        return run(order, missing, report, tasks=spare)
    inside = os.fork()
    if inside:
        # On SIGTERM kill process 1: all others in its namespace end with it, and none is left once it is reaped.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(inside, signal.SIGKILL))
        os.close(report)
        return status_of(os.waitpid(inside, 0)[1])
    confine.die_with_parent()
    attempt(missing, "memory folder", lambda: confine.mount_memory(order["folder"], order["folder_bytes"]))
    os._exit(run(order, missing, report, tasks=1))


def attempt(missing: dict[str, str], name: str, step: Any) -> bool:
    """Take a step and return whether it worked; if not, store the reason in ``missing``."""
    try:
        step()
    except OSError as error:
        missing[name] = str(error)
        return False
    return True


def run(order: dict[str, Any], missing: dict[str, str], report: int, *, tasks: int) -> int:
    """Run the program in its own process group, wait for it, and kill whatever it has left behind.

    The program cannot leave its group (seccomp), and its orphans become children of this process.
    """
    attempt(missing, "reaping", confine.adopt_orphans)
    program = os.fork()
    if not program:
        os.setpgid(0, 0)
        try:
            become(order, missing, report, tasks)
        except BaseException as error:
            os.write(2, f"sandbox: {error}\n".encode())
            os._exit(126)
    with suppress(OSError):  # the program may have done so already
        os.setpgid(program, program)
    signal.signal(signal.SIGTERM, lambda *_: kill_group(program))
    os.close(report)
    result = -1
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            return result
        if ended == program:
            result = status_of(status)
        if result >= 0:
            kill_group(program)


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def become(order: dict[str, Any], missing: dict[str, str], report: int, tasks: int) -> NoReturn:
    """Take the last steps of confinement, then execute the program."""
    confine.die_with_parent()
    folder = order["folder"]
    for name, text in order["files"].items():
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    os.chdir(folder)
    confine.limit(order["cpu_s"], order["memory_bytes"], order["file_bytes"], tasks + order["processes"])
    confine.no_new_privileges()
    readable = [*order["readable"], *DEVICES_READ]
    attempt(missing, "Landlock", lambda: confine.restrict_files(readable, [folder, "/dev/null"]))
    attempt(missing, "seccomp", confine.refuse_calls)
    os.write(report, json.dumps(missing).encode() + b"\n")
    os.close(report)
    if order["full"] and not sufficient(missing):
        os._exit(125)
    os.closerange(3, 1024)
    os.execve(order["command"][0], order["command"], order["environment"])


def sufficient(missing: dict[str, str]) -> bool:
    """Decide whether the confinement keeps a program off the network, the files and other processes."""
    return "Landlock" not in missing and not {"namespaces", "seccomp"} <= missing.keys()


def status_of(status: int) -> int:
    """Return an exit status as a shell does: 128 + n for signal n."""
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    os._exit(main())
