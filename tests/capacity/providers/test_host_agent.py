"""Test the agent on a machine: real processes, and the processes that it must never signal."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capacity.providers import host_agent
from capacity.providers.launch import LOG, PROCESS, STOPPED, boot_id, start_ticks
from tests.capacity.providers.workers import SLEEPER, STUBBORN, kill_all

TAG = "run-1.w.1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


AGENT = [sys.executable, "-m", "capacity.providers.host_agent"]


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request as a provider does: to a process that ends when it has answered."""
    done = subprocess.run(AGENT, input=json.dumps(request).encode(), capture_output=True, check=True, timeout=60)
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise host_agent.Refused(answer["error"])
    return answer


def start_request(folder: Path, **changes: Any) -> dict[str, Any]:
    request = {"do": "start", "folder": str(folder), "tag": TAG, "files": {"invite.txt": "secret"}, "wait_s": 10}
    return {**request, "program": SLEEPER, "systemd": "never", **changes}


def start(folder: Path, **changes: Any) -> dict[str, Any]:
    return ask(start_request(folder, **changes))


def stop(folder: Path, tag: str = TAG, grace_s: float = 5.0) -> dict[str, Any]:
    return ask({"do": "stop", "folder": str(folder), "tag": tag, "grace_s": grace_s})


def listed(folder: Path) -> list[str]:
    answer = host_agent.answer_to({"do": "list", "folder": str(folder), "run_id": "run-1"})
    return [one["tag"] for one in answer["running"]]


def test_a_worker_runs_at_the_lowest_priority_and_outlives_its_starter(folder: Path) -> None:
    pid = start(folder)["pid"]
    assert (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)) == (19, os.SCHED_IDLE)
    assert os.getsid(pid) == pid
    assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (folder / TAG / "invite.txt").stat().st_mode & 0o777 == 0o600
    assert listed(folder) == [TAG]
    stop(folder)
    assert listed(folder) == []
    assert not (folder / TAG / "invite.txt").exists()


def test_a_worker_that_does_not_heed_sigterm_is_killed(folder: Path) -> None:
    pid = start(folder, program=STUBBORN)["pid"]
    time.sleep(0.2)  # for the shell to ignore SIGTERM
    stop(folder, grace_s=0.3)
    assert listed(folder) == []
    assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


ENDS_AT_ONCE = ["sh", "-c", "echo no such model"]


def test_a_worker_that_has_ended_has_its_log_in_the_error(folder: Path) -> None:
    with contextlib.suppress(host_agent.Refused):  # the agent may see the process in the moment that it lives
        start(folder, program=ENDS_AT_ONCE)
    while host_agent.is_locked(folder / TAG):
        time.sleep(0.05)
    with pytest.raises(host_agent.Refused, match="not used again; its log ends: no such model"):
        start(folder, program=ENDS_AT_ONCE)


def test_a_worker_that_ends_before_the_agent_looks_is_refused_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch returns after the worker's end, so that the agent never sees its process alive."""
    launch = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: launch(*arguments, **options).wait())
    with pytest.raises(host_agent.Refused, match="ended as soon as it had started; its log ends: no such model"):
        host_agent.answer_to(start_request(folder, program=ENDS_AT_ONCE, wait_s=60))


def test_a_worker_that_does_not_start_in_time_has_its_log_in_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that only writes the log stands for an interpreter that fails before it takes the lock."""

    def fail(folder: Path, *_: object) -> None:
        (folder / LOG).write_text("no such module\n")

    monkeypatch.setattr(host_agent, "_launch", fail)
    with pytest.raises(host_agent.Refused, match=r"did not start within 0\.1 s; its log ends: no such module"):
        host_agent.answer_to(start_request(folder, wait_s=0.1))


def test_a_process_that_took_over_the_pid_gets_no_signal(folder: Path) -> None:
    """The lock shows that the worker lives, but the recorded pid is this test's own process."""
    start(folder)
    path = folder / TAG / PROCESS
    real = json.loads(path.read_text())
    assert (real["start_ticks"], real["boot_id"]) == (start_ticks(real["pid"]), boot_id())
    for changes in ({"pid": os.getpid()}, {"start_ticks": real["start_ticks"] + 1}, {"boot_id": "another"}):
        path.write_text(json.dumps({**real, **changes}))
        with pytest.raises(host_agent.Refused, match="gets no signal"):
            stop(folder, grace_s=0.2)
        assert listed(folder) == [TAG]
    path.write_text(json.dumps(real))
    stop(folder)


def test_a_stop_that_comes_first_wins(folder: Path) -> None:
    stop(folder)
    assert (folder / TAG / STOPPED).exists()
    with pytest.raises(host_agent.Refused, match="not used again"):
        start(folder)
    assert listed(folder) == []


def test_two_starts_at_once_make_one_worker(folder: Path) -> None:
    agents = [subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    data = json.dumps(start_request(folder)).encode()
    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(lambda agent: agent.communicate(data)[0], agents))
    assert len({json.loads(output)["pid"] for output in outputs}) == 1
    stop(folder)


SYSTEMD_RUN = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/systemd-arguments
while [ "$1" != -- ]; do shift; done
shift
setsid "$@" < /dev/null > {folder}/unit-log 2>&1 &
"""


def fake_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool = True) -> None:
    """Install programs in the place of the user's service manager."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("systemd-run", SYSTEMD_RUN.format(folder=folder)), ("systemctl", f"#!/bin/sh\n{answers!s}\n")):
        path = programs / name
        path.write_text(text.replace("\nTrue\n", "\ntrue\n").replace("\nFalse\n", "\nfalse\n"))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_where_the_user_has_a_systemd_a_worker_is_its_unit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_systemd(folder, monkeypatch)
    start(folder, systemd="auto")
    arguments = (folder / "systemd-arguments").read_text().splitlines()
    assert {"--user", "--collect", f"--unit=rollcast-{TAG}", "--property=Nice=19"} <= set(arguments)
    assert "secret" not in " ".join(arguments)
    assert listed(folder) == [TAG]
    stop(folder)
    assert listed(folder) == []


def test_where_systemd_does_not_answer_a_worker_is_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_systemd(folder, monkeypatch, answers=False)
    start(folder, systemd="auto")
    assert not (folder / "systemd-arguments").exists()
    assert listed(folder) == [TAG]
    stop(folder)


@pytest.mark.parametrize(
    "changes", [{"tag": "../up"}, {"tag": ".hidden"}, {"files": {"../x.txt": ""}}, {"files": {"authorized_keys": ""}}]
)
def test_names_stay_inside_the_folder(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(host_agent.Refused):
        start(folder, **changes)


def test_a_malformed_request_gets_an_answer() -> None:
    for request in ({}, {"do": "dance", "folder": "/tmp"}):
        with pytest.raises(host_agent.Refused):
            ask(request)
