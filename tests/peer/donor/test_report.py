from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from peer.config import PeerConfig
from peer.donor.control.saved_state import SavedState
from peer.donor.enforce import LimitsEnforcer
from peer.donor.receipts import Receipt, Receipts
from peer.donor.report import machine_report
from peer.limits.decide import ALL, Allowed, OwnerRequest
from peer.limits.quota import MonthUse
from peer.limits.readings import Readings

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
def test_the_owners_limits_go_before_the_workers_state(
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
