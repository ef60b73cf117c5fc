"""Test with real processes: one holds a state folder, one ends at once, one is asked to stop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peer.donor.install import running
from peer.donor.install.running import (
    Started,
    crash_log,
    holder_of,
    peer_command,
    start_in_background,
    stop,
    wait_until_answers,
)
from peer.startup import state_folder_lock
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

ROOT = Path(__file__).parents[4]
HOLDER = """
import signal, sys, time
from pathlib import Path
from peer.startup import state_folder_lock
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with state_folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_lock_names_the_process_that_holds_a_folder(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "none") is None
    with state_folder_lock(tmp_path):
        assert holder_of(tmp_path) == os.getpid()
    assert (tmp_path / "lock").exists()
    assert holder_of(tmp_path) is None  # its number is still written there


def test_a_peer_is_asked_to_stop(tmp_path: Path) -> None:
    assert not stop(tmp_path)
    with held(tmp_path) as process:
        assert holder_of(tmp_path) == process.pid
        assert stop(tmp_path, 20.0)
        assert holder_of(tmp_path) is None


def test_waiting_for_a_peer_to_stop_has_a_deadline(tmp_path: Path) -> None:
    with held(tmp_path, "stubborn") as process, pytest.raises(WaitTimedOut, match=str(process.pid)):
        stop(tmp_path, 0.3)


def test_a_peer_that_ends_at_once_is_explained_by_its_log(tmp_path: Path) -> None:
    config, log = tmp_path / "peer.toml", tmp_path / "logs" / "peer.log"
    config.write_text("nonsense = 1\n")
    started = start_in_background(config, tmp_path, log)
    with pytest.raises(ProcessFailed) as raised:
        wait_until_answers(tmp_path, started, 60.0)
    assert "status 64 (RC101 ConfigError" in raised.value.what
    assert "nonsense" in raised.value.cause
    assert "nonsense" in crash_log(log).read_text()


def test_waiting_for_a_silent_peer_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LOOK_S", 0.01)
    calls: list[None] = []
    with pytest.raises(WaitTimedOut, match="within 0"):
        wait_until_answers(tmp_path, Started(lambda: None, tmp_path / "log"), 0.05, lambda: calls.append(None))
    assert calls


def test_a_peer_runs_with_this_interpreter(tmp_path: Path) -> None:
    assert peer_command(tmp_path / "a.toml") == [
        *(sys.executable, "-P", "-m", "rollcast.cli.main", "peer", "run"),
        str(tmp_path / "a.toml"),
    ]
