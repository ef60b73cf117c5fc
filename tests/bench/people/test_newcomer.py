"""Test the newcomer's path with a fake clock and fake commands, and the timing of commands.

`python -m bench newcomer` takes the real path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.people import newcomer
from bench.people.newcomer import accepted, commands_in, path_of, walk
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

PYTHON = Path("/venv/bin/python")


class Machine:
    """A machine on which each command takes given seconds; its third status shows the first accepted rollout."""

    def __init__(self, fails: str = "", rollouts: int = 1) -> None:
        self.now_s, self.looks = 0.0, 0
        self.typed: list[str] = []
        self.fails, self.rollouts = fails, rollouts

    def do(self, command: Sequence[str]) -> str:
        name = next(word for word in ("install", "check", "join", "status", "leave") if word in command)
        self.now_s += {"install": 40.0, "check": 20.0, "join": 10.0, "status": 300.0}.get(name, 0.0)
        self.typed.append(name)
        if name == self.fails:
            raise ProcessFailed(f"{name} failed")
        self.looks += name == "status"
        return json.dumps({"total": {"accepted": self.rollouts} if self.looks >= 2 else {"late": 3}})


def test_three_commands_and_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "_POLL_S", 0.0)
    machine = Machine()
    figures = walk(path_of(PYTHON, Path("/w"), "rollcast1-x"), machine.do, PYTHON, lambda: machine.now_s)
    assert figures == {
        "commands": 3.0,
        "install_s": 40.0,
        "check_s": 20.0,
        "join_s": 10.0,
        "first_rollout_s": 600.0,
        "seconds": 670.0,
    }
    assert machine.typed == ["install", "check", "join", "status", "status", "leave"]


@pytest.mark.parametrize(("fails", "left"), [("check", False), ("status", True)])
def test_a_joined_newcomer_leaves_again(fails: str, left: bool) -> None:
    machine = Machine(fails)
    with pytest.raises(ProcessFailed):
        walk(path_of(PYTHON, Path("/w"), "rollcast1-x"), machine.do, PYTHON, lambda: machine.now_s)
    assert (machine.typed[-1] == "leave") == left


def test_waiting_for_a_first_rollout_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "_POLL_S", 0.0)
    machine = Machine(rollouts=0)
    with pytest.raises(WaitTimedOut, match="no rollout"):
        walk(path_of(PYTHON, Path("/w"), "rollcast1-x"), machine.do, PYTHON, lambda: machine.now_s)


def test_accepted_rollouts_are_read_from_the_status() -> None:
    assert accepted('{"total": {"accepted": 3, "late": 1}}') == 3
    assert accepted('{"total": {}}') == 0


def test_commands_run_as_a_user_with_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    do = commands_in(tmp_path)
    assert do(["/bin/sh", "-c", 'echo "$HOME:$PYTHONPATH:$(pwd)"']).strip() == f"{tmp_path}::{tmp_path}"
    with pytest.raises(ProcessFailed, match="status 3") as raised:
        do(["/bin/sh", "-c", "echo why >&2; exit 3"])
    assert "why" in raised.value.cause


@pytest.mark.slow  # it starts a run to time two commands
def test_it_times_status_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup", "--repeats", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["status_heavy_imports"] == 0, "it must answer at once"
    assert 0 < figures["status_ms"] <= figures["status_ms_max"]
    assert figures["help_cpu_ms"] > 0
