from __future__ import annotations

import pytest
from pydantic import ValidationError

from peer.limits.ceilings import Ceilings
from peer.limits.config import LimitsConfig
from peer.limits.quota import MonthUse
from peer.limits.schedule import Schedule


def test_nothing_set_limits_nothing() -> None:
    rules = LimitsConfig().rules()
    assert rules.compute == rules.network == Schedule()
    assert rules.ceilings == Ceilings()


def test_units_are_those_of_their_names() -> None:
    limits = LimitsConfig(idle_minutes_min=5, memory_free_gib_min=4, upload_gb_month=10, quota_reset_day=7)
    ceilings = limits.rules().ceilings
    assert (ceilings.idle_s_min, ceilings.memory_free_bytes_min) == (300.0, 4 * 2**30)
    quota = limits.quota(MonthUse("2026-11", int(10e9), 0))
    assert quota.use.sent_bytes == int(10e9)


def test_hours_are_checked_at_once() -> None:
    assert LimitsConfig(compute_hours=("mon-fri 22:00-07:00",)).rules().compute.windows
    with pytest.raises(ValidationError, match="no day"):
        LimitsConfig(compute_hours=("someday",))
