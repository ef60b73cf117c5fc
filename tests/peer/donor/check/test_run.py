"""Test whole checks, without a coordinator and with an invite of a real one; the engine is a fake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.config import EngineConfig, LinkConfig, PeerConfig
from peer.donor.check import run as check_run
from peer.donor.check.run import CheckRequest, check_machine
from peer.donor.machine import decode_speed
from peer.reachability import link_speed
from peer.startup import state_folder_lock
from rollcast.runtime.errors import ConfigError, JoinRefused, MissingExtra
from tests.coordinator.running import running
from tests.peer.engines.fake_engine import FakeEngine

CONFIG = PeerConfig(engine=EngineConfig(concurrent_rollouts=2))


class LoadedEngine(FakeEngine):
    """A fake engine that names its hardware."""

    hardware = "test 1.0, 1 x cpu (cpu)"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speed, "WANTED_S", 0.02)
    monkeypatch.setattr(decode_speed, "SECONDS", 0.01)


def engine(_: PeerConfig) -> LoadedEngine:
    return LoadedEngine(token_s=0.0001)


async def test_without_an_invite_only_the_machine_is_checked(tmp_path: Path) -> None:
    said: list[str] = []
    checked = await check_machine(
        CheckRequest(config=CONFIG, state_folder=tmp_path), said.append, engine_factory=engine
    )
    assert checked.exit_status == 0
    assert (checked.link, checked.worth, checked.needs) == (None, None, None)
    assert checked.decoded is not None
    assert checked.decoded.tokens_per_s > 0.0
    assert {one.topic for one in checked.findings} >= {"system", "engine", "gpu", "memory", "disk", "speed"}
    assert said[0] == "checking this machine"


async def test_with_an_invite_the_machines_contribution_is_judged(tmp_path: Path) -> None:
    async with running(tmp_path / "run") as run:
        asked = CheckRequest(
            config=CONFIG.model_copy(update={"link": LinkConfig(upload_mbit_s_max=8.0)}),
            state_folder=tmp_path,
            invite=run.invite("peer"),
        )
        checked = await check_machine(asked, lambda _: None, engine_factory=engine)
    assert checked.exit_status == 0
    assert checked.link is not None
    assert checked.link.problems == ()
    assert checked.needs is not None
    assert checked.needs["run_name"] == "local"
    assert checked.worth is not None
    assert "not timed enough" in checked.worth["sentence"]
    assert any("others can dial this machine" in one.text for one in checked.findings)


async def test_the_expired_invite_of_a_member_is_no_error(tmp_path: Path) -> None:
    async with running(tmp_path / "run") as run:
        invite = replace(run.invite("peer"), token="expired")
        for is_member, level, status in ((False, "error", JoinRefused.exit_code), (True, "warning", 0)):
            asked = CheckRequest(
                config=CONFIG, state_folder=tmp_path, invite=invite, is_member=is_member, decode=False, link=False
            )
            checked = await check_machine(asked, lambda _: None, engine_factory=engine)
            (found,) = [one for one in checked.findings if one.code == JoinRefused.code]
            assert (found.level, checked.exit_status) == (level, status)
            assert ("stays a member" in found.text) == is_member


async def test_an_engine_that_is_missing_is_a_finding_and_the_exit_status(tmp_path: Path) -> None:
    def none(_: PeerConfig) -> LoadedEngine:
        raise MissingExtra("nothing draws here", fix="install it")

    checked = await check_machine(
        CheckRequest(config=CONFIG, state_folder=tmp_path), lambda _: None, engine_factory=none
    )
    assert checked.exit_status == MissingExtra.exit_code
    assert (checked.findings[0].level, checked.findings[0].code) == ("error", "RC105")


async def test_a_running_peer_is_not_disturbed(tmp_path: Path) -> None:
    with state_folder_lock(tmp_path):
        checked = await check_machine(
            CheckRequest(config=CONFIG, state_folder=tmp_path), lambda _: None, engine_factory=engine
        )
    assert checked.decoded is None
    assert any("a peer runs here already" in one.text for one in checked.findings)


@pytest.mark.parametrize(
    ("reach", "found"),
    [
        ({"reachability": "dialable", "address": "192.0.2.1:7411 /ip4/192.0.2.1/tcp/1"}, ("192.0.2.1", 7411, True)),
        ({"reachability": "only outwards", "address": ""}, ("", 7420, False)),
        ({}, None),
    ],
)
def test_a_running_peer_reports_the_result_of_dialling_back(
    reach: dict[str, str], found: tuple[str, int, bool] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_run, "request", lambda *_: {"reach": reach})
    dialled = check_run._found_by_the_peer(tmp_path, LinkConfig())
    assert found == (None if dialled is None else (dialled.address, dialled.port, dialled.reached))


async def test_measurements_can_be_left_out(tmp_path: Path) -> None:
    asked = CheckRequest(config=CONFIG, state_folder=tmp_path, decode=False, link=False, model="qwen3-0.6b")
    checked = await check_machine(asked, lambda _: None, engine_factory=engine)
    assert checked.decoded is None
    memory = next(one for one in checked.findings if one.topic == "memory")
    assert "needed for the run's model" in memory.text
    with pytest.raises(ConfigError, match="no model"):
        await check_machine(CheckRequest(config=CONFIG, state_folder=tmp_path, model="gpt-9"), lambda _: None)


def test_the_owners_cap_bounds_the_link() -> None:
    assert check_run._capped(5e6, None) == 5e6
    assert check_run._capped(5e6, 8.0) == 1e6
    assert check_run._capped(None, 8.0) == 1e6
