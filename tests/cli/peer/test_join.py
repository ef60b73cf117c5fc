"""Test join, status, limits, bug report and leave, with real processes against a real coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peer.donor.install.join import PeerPaths
from peer.donor.install.running import holder_of
from rollcast.cli.peer import join
from rollcast.runtime.errors import JoinRefused, Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from rollcast.wire.joining.invite import Invite
from tests.coordinator.running import Running, running

ROOT = Path(__file__).parents[3]
DEADLINE_S = 100.0


@dataclass
class Machine:
    """A donor's machine: its own home, no service manager."""

    home: Path

    @property
    def state(self) -> Path:
        return self.home / "state" / "rollcast" / "peer"

    @property
    def config(self) -> Path:
        return self.home / "config" / "rollcast" / "peer.toml"

    async def rollcast(self, *arguments: str, sent: str = "") -> tuple[int, str, str]:
        environment = os.environ | {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_RUNTIME_DIR": str(self.home),
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere",
            "PYTHONPATH": str(ROOT),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rollcast.cli.main", "peer", *arguments),
            env=environment,
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(sent.encode()), DEADLINE_S)
        return process.returncode or 0, out.decode(), err.decode()

    async def asked(self, *arguments: str, sent: str = "") -> dict[str, Any]:
        status, out, err = await self.rollcast(*arguments, "--json", sent=sent)
        assert status == 0, err
        return dict(json.loads(out))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "home").mkdir()
    return Machine(tmp_path / "home")


async def peers_of(run: Running) -> dict[str, str]:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{run.http_url}/api/v1/status") as response:
        return {peer["name"]: peer["state"] for peer in (await response.json())["peers"]}


@pytest.mark.timeout(240)
async def test_from_one_string_to_a_peer_that_runs_and_back(tmp_path: Path, machine: Machine) -> None:
    async with running(tmp_path / "run") as run:
        invite = run.invite("peer")
        joined = await machine.asked("join", "-", "--name", "shed", sent=invite.encode())
        try:
            assert (joined["started"], joined["run_id"], joined["name"]) == ("background", invite.run_id, "shed")
            assert joined["pid"] == holder_of(machine.state)
            assert (machine.state / "invite.txt").stat().st_mode & 0o777 == 0o600
            assert invite.token not in machine.config.read_text() + joined["log"]
            status = await machine.asked("status")
            assert (status["peer_id"], status["run_id"]) == (joined["peer_id"], invite.run_id)
            assert set(await peers_of(run)) == {"shed"}

            said = await machine.asked("limits", "set", "limits.upload_gb_month=5", 'compute_hours=["sat,sun"]')
            assert (said["limits"]["upload_gb_month"], said["changed"]) == (5.0, ["compute_hours", "upload_gb_month"])
            report = await machine.asked("bugreport", "--out", str(machine.home / "report.tar.gz"))
            assert "status.json" in report["holds"]
            with tarfile.open(report["file"]) as archive:
                told = archive.extractfile("report/status.json")
                assert told is not None
                assert json.loads(told.read())["peer_id"] == joined["peer_id"]
            _, log, _ = await machine.rollcast("logs", "--lines", "200")
            assert "peer started" in log

            again = await machine.asked("join", invite.encode(), "--name", "attic")
            assert (again["name"], again["peer_id"]) == ("attic", joined["peer_id"])
            assert again["pid"] != joined["pid"]
            assert (await machine.asked("limits"))["limits"]["upload_gb_month"] == 5.0
            status_, _, err = await machine.rollcast("leave")
            assert (status_, "RC101" in err) == (64, True)  # standard input is not a terminal
            left = await machine.asked("leave", "--yes", "--within", "60s")
        finally:
            await machine.rollcast("leave", "--now", "--yes")  # in any case, so that no process stays behind
        assert (left["ended"], left["identity_kept"]) == ("finished", True)
        assert holder_of(machine.state) is None
        assert sorted(path.name for path in machine.state.iterdir()) == [
            "donor.json",
            "identity.key",
            "instance.json",
            "limits.json",
            "receipts",
        ]
        assert (await peers_of(run))["attic"] == "left"
        assert (await machine.rollcast("status"))[0] == 69


async def test_a_wrong_invite_changes_nothing(machine: Machine) -> None:
    status, _, err = await machine.rollcast("join", "rollcast1-nonsense")
    assert (status, err.splitlines()[-3][:5]) == (JoinRefused.exit_code, JoinRefused.code)
    assert not machine.config.exists()
    assert not machine.state.exists()


async def test_no_start_only_writes_the_configuration(tmp_path: Path, machine: Machine) -> None:
    async with running(tmp_path / "run") as run:
        joined = await machine.asked("join", run.invite("peer").encode(), "--no-start")
        assert joined["started"] == "no"
        assert holder_of(machine.state) is None
        status, out, _ = await machine.rollcast("run", str(machine.config), "--dry-run")
        assert (status, json.loads(out)["link"]["host"]) == (0, "127.0.0.1")
        refused = run.invite("origin").encode()
        status, _, err = await machine.rollcast("join", refused)
        assert (status, "for the role origin" in err) == (77, True)


async def test_a_coordinator_that_is_gone_is_waited_for_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(join, "_JOIN_DEADLINE_S", 1.5)
    monkeypatch.setattr(join, "_REPORT_EVERY_S", 0.2)
    learner = Identity.generate()
    invite = Invite(
        run_id=RunId("gone-run"),
        role="peer",
        http_url="http://127.0.0.1:1",
        grpc_address="127.0.0.1:2",
        ca_sha256="0" * 64,
        learner_public_key=learner.public_key.hex(),
        token="token",
    )
    with pytest.raises(Unreachable) as caught:
        await join._enrol(invite, PeerPaths(tmp_path / "peer.toml", tmp_path / "state"))
    lines = capsys.readouterr().err.splitlines()
    assert (
        "of at most 1.5 s): attempt 2 at http://127.0.0.1:1; the last one failed: connection: 127.0.0.1:1 refuses"
        in lines[0]
    )
    assert len(lines) > 1
    assert all(line.startswith("Waiting for the coordinator to answer (") for line in lines)
    assert "refuses the connection" in caught.value.cause
    assert "peer check INVITE" in caught.value.fix
    assert "new invite" in caught.value.fix


def test_a_wait_is_reported_regularly_with_its_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((100.0, 100.2, 104.9, 105.1, 105.3, 110.2))
    monkeypatch.setattr(join.time, "monotonic", lambda: next(clock))
    waiting = join._Waiting("the peer to answer", 180.0)
    for _ in range(5):
        waiting.report_if_due()
    assert capsys.readouterr().err.splitlines() == [
        "Waiting for the peer to answer (5 s of at most 180 s).",
        "Waiting for the peer to answer (10 s of at most 180 s).",
    ]
