"""Test what a peer shows its owner: its state, its report, receipts, and newer releases."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import structlog.testing

from peer.config import PeerConfig
from peer.donor.control.saved_state import SavedState
from peer.donor.describe import describe
from peer.donor.enforce import LimitsEnforcer
from peer.donor.receipts import Receipt, Receipts
from peer.donor.report import machine_report, newer_release
from peer.limits.decide import ALL, Allowed, OwnerRequest
from peer.limits.quota import MonthUse
from peer.limits.readings import Readings
from peer.session.coordinators import Coordinators
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.proto import rollcast_pb2 as pb

DAY = datetime(2026, 11, 22, 8)


def receipt(verdict: str = "accepted") -> Receipt:
    return Receipt(at=f"{DAY:%Y-%m-%dT%H:%M:%S}", lease_id=7, sample_index=1, version=3, tokens=20, verdict=verdict)


def test_verdicts_are_counted_by_day_over_restarts(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.add([receipt(), receipt(), receipt("late_duplicate")], DAY - timedelta(days=1))
    receipts.add([receipt()], DAY)
    receipts.save()
    again = Receipts(tmp_path)
    assert again.today(DAY) == {"accepted": 1}
    assert again.total() == {"accepted": 3, "late_duplicate": 1}


def test_each_verdict_is_written_down(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.add([receipt("fenced")], DAY)
    (line,) = (tmp_path / "2026-11-22.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] == "fenced"
    assert list(receipts.newest) == [receipt("fenced")]


def test_the_oldest_days_are_deleted(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    for days in range(40):
        receipts.add([receipt()], DAY + timedelta(days=days))
    assert len(list(tmp_path.glob("*.jsonl"))) == 30
    assert receipts.total() == {"accepted": 40}, "counts are kept"


@pytest.mark.parametrize("text", ["", "[]", '{"2026-11-22": 3}', '{"2026-11-22": {"accepted": "many"}}'])
def test_damaged_counts_begin_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "counts.json").write_text(text)
    assert Receipts(tmp_path).total() == {}


def test_a_disk_that_refuses_is_logged_once_and_verdicts_count_nevertheless(tmp_path: Path) -> None:
    folder = tmp_path / "receipts"
    folder.touch()
    receipts = Receipts(folder)
    with structlog.testing.capture_logs() as lines:
        receipts.add([receipt()], DAY)
        receipts.save()
    assert [line["event"] for line in lines] == ["receipts are not written, verdicts are still counted"]
    folder.unlink()
    receipts.save()
    assert Receipts(folder).total() == {"accepted": 1}


LEAP_DAY = datetime(2028, 2, 29, 23, 59)


class PlayedKeeper:
    used = MonthUse("2026-11", 5, 6)
    readings = Readings(cpu_celsius=50.0)

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed


@pytest.mark.parametrize(
    ("allowed", "state", "reason"),
    [
        (ALL, "generating", "4 rollouts"),
        (Allowed(False, False, False, "paused", "paused by its owner"), "paused", "paused by its owner"),
        (Allowed(True, False, True, "on", "upload used up"), "generating", "4 rollouts; upload used up"),
    ],
)
def test_the_owners_limits_override_the_workers_state(
    tmp_path: Path, allowed: Allowed, state: str, reason: str
) -> None:
    memory = SavedState(tmp_path)
    memory.save(OwnerRequest("pause", datetime(2026, 11, 22, 12, 30)), MonthUse())
    process: dict[str, Any] = {"state": "generating", "reason": "4 rollouts", "name": "attic"}
    enforcer = cast(LimitsEnforcer, PlayedKeeper(allowed))
    config = PeerConfig.model_validate({"link": {"upload_mbit_s_max": 5}})
    receipts = Receipts(tmp_path / "receipts")
    receipts.add([Receipt("2028-02-29T23:58:00", 7, 0, 3, 90, "accepted")], LEAP_DAY)
    report = machine_report(process, enforcer, memory, receipts, config, LEAP_DAY)
    assert (report["state"], report["reason"], report["name"]) == (state, reason, "attic")
    assert report["today"] == {"accepted": 1}
    assert report["until"] == "2026-11-22T12:30"
    assert report["used"]["sent_bytes"] == 5
    assert report["readings"]["cpu_celsius"] == 50.0
    assert report["limits"]["upload_mbit_s_max"] == 5.0
    tomorrow = machine_report(process, enforcer, memory, receipts, config, LEAP_DAY + timedelta(minutes=1))
    assert (tomorrow["today"], tomorrow["total"]) == ({}, {"accepted": 1})


def test_the_owner_sees_what_the_heartbeat_reports() -> None:
    heartbeat = pb.Heartbeat(
        state="generating",
        reason="4 rollouts with version 7",
        has_active_version=True,
        active_version=7,
        receiving_version=8,
        receiving_chunks_have=3,
        receiving_chunks_total=40,
        receiving_map=b"\xff\x00",
        p2p="running",
        swap=pb.SwapReport(version=7, kind="delta", paused_s=0.25, moved_bytes=30),
        engine_devices=4,
        engine_versions=1,
        links=[
            pb.LinkReport(
                peer_id="12D3",
                transport="punched",
                rtt_s=0.02,
                bytes_sent=5,
                bytes_received=6,
                congestion_control="bbr",
                lost_share=0.01,
            )
        ],
    )
    said = describe(
        pb.Hello(name="attic", held_versions=[5, 6]),
        heartbeat,
        run_id="run",
        peer_id="me",
        search=Coordinators(["host:1"]),
        reach={"reachability": "dialable"},
        connected=True,
        now=0.0,
        uptime_s=3.0,
    )
    assert (said["coordinator"], said["coordinators_failing"]) == ("host:1", [])
    assert (said["name"], said["version_active"], said["version_newest"]) == ("attic", 7, 7)
    assert said["receiving"] == {"version": 8, "chunks_have": 3, "chunks_total": 40, "map": [255, 0]}
    swap = {"version": 7, "kind": "delta", "paused_s": 0.25, "moved_bytes": 30, "read_back": False}
    assert said["swap"] == swap
    assert (said["engine_devices"], said["engine_versions"]) == (4, 1)
    path = {"transport": "punched", "path": "hole-punched"}
    tcp = {"congestion_control": "bbr", "lost_share": 0.01, "window_limited_share": 0.0}
    assert said["links"] == [{"peer_id": "12D3", **path, "rtt_s": 0.02, "bytes_sent": 5, "bytes_received": 6, **tcp}]
    assert said["reach"] == {"reachability": "dialable", "p2p": "running"}


def test_a_peer_that_has_just_started_holds_nothing() -> None:
    search = Coordinators(["host:1"])
    search.failed(HopFailed("TLS", "host:1", "says nothing"), 1.0)
    ids = {"run_id": "", "peer_id": ""}
    starting = pb.Heartbeat(state="starting")
    said = describe(pb.Hello(), starting, **ids, search=search, reach={}, connected=False, now=3.0, uptime_s=0.0)
    assert said["version_active"] is said["version_newest"] is said["receiving"] is said["swap"] is None
    assert [(row["hop"], row["seconds_ago"]) for row in said["coordinators_failing"]] == [("TLS", 2.0)]


@pytest.mark.parametrize(
    ("theirs", "newer"),
    [
        ("rollcast 0.1.0", ""),
        ("rollcast 0.1.1 (commit 1a2b3c4)", "0.1.1"),
        ("rollcast 0.2.0rc1", "0.2.0"),
        ("rollcast 0.10.0", "0.10.0"),
        ("rollcast 1.0.0", "1.0.0"),
        ("rollcast 0.0.9", ""),
        ("", ""),
        ("another 9.9.9", ""),
        ("rollcast 9.9.9999999", ""),
        ("rollcast 9.9", ""),
    ],
)
def test_only_a_later_release_is_news(theirs: str, newer: str) -> None:
    found = newer_release("rollcast 0.1.0 (commit 89abcde)", theirs)
    assert ("" if found is None else found.theirs) == newer
    if found is not None:
        assert found.to_json()["ours"] == "0.1.0"
        assert "rollcast peer finish" in found.how


def test_a_release_of_unknown_form_is_not_reported() -> None:
    assert newer_release("unknown", "rollcast 9.0.0") is None
