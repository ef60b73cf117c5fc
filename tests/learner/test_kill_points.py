from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from learner import kill_points
from learner.kill_points import LABELS, VARIABLE, arm, arm_from_environment, kill_point
from rollcast.runtime.errors import ConfigError

LEARNER = Path(kill_points.__file__).parent


def test_nothing_happens_when_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    arm_from_environment()
    kill_point("pushed")


@pytest.mark.parametrize("wish", ["elsewhere", "pushed:x", "pushed:-1"])
def test_a_wish_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    monkeypatch.setenv(VARIABLE, wish)
    with pytest.raises(ConfigError, match=VARIABLE):
        arm_from_environment()


def test_the_process_dies_at_the_occurrence_asked_for() -> None:
    program = (
        "from learner.kill_points import arm, kill_point\n"
        "arm('pushed:3')\n"
        "for turn in range(5):\n"
        "    kill_point('announced'); print(turn, flush=True); kill_point('pushed')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60.0, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == [b"0", b"1", b"2"]


def test_every_label_is_at_one_place() -> None:
    assert len(set(LABELS)) == len(LABELS) >= 20
    text = "".join(path.read_text() for path in LEARNER.rglob("*.py") if path.name != "kill_points.py")
    used = re.findall(r'kill_point\("(\w+)"\)', text)
    assert sorted(used) == sorted(LABELS)


def test_disarming() -> None:
    arm("pushed")
    arm("")
    kill_point("pushed")
