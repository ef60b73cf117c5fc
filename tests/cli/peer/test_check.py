"""Test the output of `rollcast peer check`; tests/peer/donor/check/test_run.py tests the measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.donor.check import run
from peer.donor.check.findings import Finding
from peer.donor.check.run import CheckRequest, CheckResult
from peer.reachability.link_speed import LinkMeasured
from rollcast.cli.peer.check import check
from rollcast.runtime.errors import JoinRefused, Unreachable
from rollcast.wire.donor.process_end import RUN_ENDED, write_end
from tests.peer.donor.check.test_findings import DECODED, MACHINE
from tests.peer.donor.install.test_join import invite

WORTH = {
    "meets": True,
    "sentence": "meets S=3 for the 4B model with 38% slack; not 8b: download too slow",
    "reasons": ["a rollout takes 48 s"],
    "what_would_help": [],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CheckRequest]:
    """Replace the check, return its requests; its result has an error and an estimate of the machine's value."""
    found: list[CheckRequest] = []

    async def answer(asked: CheckRequest, said: Any) -> CheckResult:
        said("measuring")
        found.append(asked)
        findings = [Finding("error", "disk", "1.0 GiB free", "RC106", "free some"), Finding("ok", "gpu", "one")]
        link = LinkMeasured(0.01, problems=(Unreachable("nobody", fix="look"),))
        return CheckResult(MACHINE, findings, link, DECODED, {"run_name": "r"}, WORTH)

    monkeypatch.setattr(run, "check_machine", answer)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return found


def test_errors_first_each_with_a_code_and_a_fix(asked: list[CheckRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert check(invite().encode()) == 69
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[:2] == ["ERROR  disk    RC106: 1.0 GiB free", "                fix: free some"]
    assert WORTH["sentence"] in lines
    assert "measuring" in shown.err
    assert asked[0].invite == invite()


def test_lines_are_wrapped_under_their_text(
    asked: list[CheckRequest], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = Finding("warning", "ports", "nobody " * 30, "RC205", "1. " + "do " * 60 + "\n2. check")

    async def answer(_: CheckRequest, said: Any) -> CheckResult:
        return CheckResult(MACHINE, [long])

    monkeypatch.setattr(run, "check_machine", answer)
    check()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line[: len(line) - len(line.lstrip()) + 6] for line in lines[:7]] == [
        "warn  ",
        " " * 15 + "nobody",
        " " * 15 + "nobody",
        " " * 16 + "fix: 1",
        " " * 24 + "do do ",
        " " * 24 + "do do ",
        " " * 21 + "2. che",
    ]


def test_check_prints_json(asked: list[CheckRequest], capsys: pytest.CaptureFixture[str]) -> None:
    check(json_output=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["fit"], found["worth"], found["machine"]["cores"]) == (False, WORTH, 8)
    assert found["link"]["problems"] == [{"code": "RC203", "what": "nobody", "cause": "", "fix": "look"}]
    assert asked[0].invite is None


def test_check_uses_the_invite_of_the_joined_run(
    asked: list[CheckRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, file = tmp_path / "config" / "rollcast" / "peer.toml", tmp_path / "invite.txt"
    config.parent.mkdir(parents=True)
    config.write_text(f'state_folder = "{tmp_path}/s"\ninvite_file = "{file}"\n')
    check()
    assert asked[-1].invite is None
    file.write_text(invite().encode() + "\n")
    check()
    assert (asked[-1].invite, asked[-1].state_folder) == (invite(), tmp_path / "s")
    assert not asked[-1].is_member, "it has no certificate yet"
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "credentials.pem").touch()
    check()
    assert asked[-1].is_member
    capsys.readouterr()
    write_end(tmp_path / "s", f"{RUN_ENDED}: finished", unix_s=1.8e9)
    check()
    assert asked[-1].invite is None
    assert "the run that this machine had joined is over (it ended at 2027-01-" in capsys.readouterr().err
    check(invite().encode())
    assert asked[-1].invite == invite()


def test_wrong_invite_is_an_error(asked: list[CheckRequest]) -> None:
    with pytest.raises(JoinRefused):
        check("rollcast1-x")
    assert asked == []


def test_check_without_an_invite_as_a_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollcast.cli.main", "peer", "check", "--no-decode", "--json", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (done.returncode, json.loads(done.stdout)["fit"]) == (0, True), done.stderr
