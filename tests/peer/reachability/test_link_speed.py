"""Test measurements of a link to the real coordinator on loopback, and to ports that are closed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from peer.donor.check.dial_back import dialled_back, listening_for
from peer.donor.install.join import ListenSettings
from peer.reachability import link_speed
from peer.reachability.link_speed import InviteHttp, measure_link
from rollcast.runtime.errors import JoinRefused, Unreachable, WrongKey
from tests.coordinator.running import changed, running


async def test_a_link_is_measured_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speed, "WANTED_S", 0.05)
    said: list[str] = []
    async with running(tmp_path) as run:
        found = await measure_link(run.invite("peer"), said.append)
        assert found.problems == ()
        assert (found.download_bytes_per_s or 0.0) > 1e6
        assert (found.upload_bytes_per_s or 0.0) > 1e6
        assert 0.0 < (found.rtt_s or 0.0) < 5.0
        assert abs(found.skew_s or 0.0) < 2.0
        assert (found.control_port, found.control_failed) == (True, None)
        assert any(line.startswith("download: ") for line in said)

        async with InviteHttp(replace(run.invite("peer"), grpc_address="127.0.0.1:1")) as door:
            failed = await door.control_hop()
            assert failed is not None
            assert failed.hop == "connection"

        async with InviteHttp(run.invite("peer"), lambda: time.time() + 3600.0) as door:
            assert (await door.clock())[1] == pytest.approx(3600.0, abs=2.0)

        async with InviteHttp(run.invite("peer")) as door:
            dialled = await dialled_back(door, 0)
            assert (dialled.reached, dialled.address) == (True, "127.0.0.1")
        assert await listening_for(run.invite("peer")) == ListenSettings()  # on this machine: loopback will do

        forged = replace(run.invite("peer"), token="nonsense")
        problems = (await measure_link(forged)).problems
        assert [type(problem) for problem in problems] == [JoinRefused, JoinRefused]
        other = replace(run.invite("peer"), ca_sha256="0" * 64)
        assert [type(problem) for problem in (await measure_link(other)).problems] == [WrongKey]


async def test_beyond_loopback_all_of_it_is_tls_pinned_by_the_invite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_speed, "WANTED_S", 0.01)
    serve = {"host": "0.0.0.0", "advertise_host": "127.0.0.1"}
    async with running(tmp_path, changed(serve=serve)) as run:
        invite = run.invite("peer")
        assert invite.http_url.startswith("https://")
        found = await measure_link(invite)
        assert found.problems == ()
        assert (found.upload_bytes_per_s or 0.0) > 0.0
        async with InviteHttp(invite) as door:
            assert (await door.ask("GET", "/api/v1/worth"))["run_name"] == "local"
        with pytest.raises(WrongKey):
            async with InviteHttp(replace(invite, ca_sha256="0" * 64)):
                pass


async def test_an_unreachable_coordinator_is_one_problem(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        invite = replace(run.invite("peer"), http_url="http://127.0.0.1:1", grpc_address="127.0.0.1:1")
    found = await measure_link(invite)
    assert [type(problem) for problem in found.problems] == [Unreachable]
    assert found.rtt_s is None
    far = replace(invite, grpc_address="run.example:1")
    assert await listening_for(far) == ListenSettings("0.0.0.0", 7420, "none")


async def test_transfers_grow_until_one_takes_long_enough() -> None:
    sizes: list[int] = []

    async def once(size: int) -> tuple[int, float]:
        sizes.append(size)
        return size, size / 4e6

    assert await link_speed._by_doubling(once, lambda _: None, "x") == pytest.approx(4e6)
    assert sizes == sorted(sizes)
    assert 1.0 <= sizes[-1] / 4e6 <= 4.0
    assert len(sizes) <= 4
