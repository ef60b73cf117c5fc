from __future__ import annotations

import os
from pathlib import Path

from peer.donor.machine.owner_presence import ask, graphical_idle_s, idle_s, terminal_touches

LIST = "c1 1000 jan seat0 tty2\n7 1000 jan - pts/0\n"
SESSIONS = {
    "c1": "Type=wayland\nIdleHint=yes\nIdleSinceHintMonotonic=40000000\n",
    "7": "Type=tty\nIdleHint=no\nIdleSinceHintMonotonic=0\n",
}


def logind(command: list[str]) -> str:
    return LIST if command[1] == "list-sessions" else SESSIONS[command[2]]


def test_an_idle_desktop_tells_since_when() -> None:
    assert graphical_idle_s(100.0, logind) == 60.0


def test_a_desktop_in_use_is_not_idle() -> None:
    def busy(command: list[str]) -> str:
        return logind(command).replace("IdleHint=yes", "IdleHint=no")

    assert graphical_idle_s(100.0, busy) == 0.0


def test_without_logind_there_is_no_answer() -> None:
    assert graphical_idle_s(100.0, lambda _: "") is None


def test_terminals_tell_when_they_were_typed_into(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    terminal = tmp_path / "pts" / "3"
    terminal.touch()
    os.utime(terminal, (1000.0, 2000.0))
    (tmp_path / "pts" / "ptmx").touch()
    assert terminal_touches([tmp_path / "pts"]) == [1000.0]


def test_a_command_that_is_not_there_says_nothing() -> None:
    assert ask(["rollcast-no-such-command"]) == ""
    assert ask(["false"]) == ""
    assert ask(["echo", "hello"]) == "hello\n"


def test_this_machine_answers_or_does_not() -> None:
    idle = idle_s(logind)
    assert idle is not None
    assert idle >= 0.0
