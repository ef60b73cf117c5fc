from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.reports.what_if import (
    Variant,
    broadcast_curves,
    cheapest,
    combinations,
    cost_curves,
    listed,
    variant_sheet,
)
from rollcast.runtime.errors import ConfigError
from tests.capacity.sample_plan import infeasible_sample, sample_plan


def found() -> list[Variant]:
    dear = replace(sample_plan(), workers_usd_per_hour=9.0, t_bcast_s=5.0)
    return [
        Variant({"topology": "tree", "staleness": 1}, infeasible_sample()),
        Variant({"topology": "tree", "staleness": 4}, dear),
        Variant({"topology": "star", "staleness": 4}, sample_plan()),
    ]


def test_values_are_read() -> None:
    assert listed("staleness", "2..4,8") == [2, 3, 4, 8]
    assert listed("staleness", "2..8..3") == [2, 5, 8]
    assert listed("uplink", "500Mbit/s, 1Gbit/s,1Gbit/s") == ["500Mbit/s", "1Gbit/s"]
    assert listed("topology", "stripes=8,tree") == ["stripes=8", "tree"]
    for option, text in (("staleness", "two"), ("uplink", ",")):
        with pytest.raises(ConfigError):
            listed(option, text)


def test_combinations_are_bounded() -> None:
    assert combinations({"kappa": [1, 2], "staleness": [4]}) == [
        {"kappa": 1, "staleness": 4},
        {"kappa": 2, "staleness": 4},
    ]
    with pytest.raises(ConfigError, match="441 combinations"):
        combinations({"kappa": list(range(21)), "staleness": list(range(21))})


def test_the_cheapest_feasible_one_has_the_tick() -> None:
    variants = found()
    assert cheapest(variants) is variants[2]
    assert cheapest(variants[:1]) is None
    sheet = variant_sheet(variants)
    assert [row[0] for row in sheet.rows] == [False, False, True]
    assert "rollout takes" in str(sheet.rows[0][-1])
    assert sheet.lines == ("2 of 3 are feasible; cheapest: star, S = 4",)


def test_curves_leave_gaps_where_nothing_will_do() -> None:
    curves = cost_curves(found())
    assert [(point.x, point.y is None) for point in curves["tree"]] == [(1.0, True), (4.0, False)]
    assert [point.name for point in broadcast_curves(found())["star"]] == ["S = 4"]
