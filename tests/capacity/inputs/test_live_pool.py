from __future__ import annotations

from typing import Any

import pytest

from capacity.inputs.live_pool import live_run, merged
from capacity.inputs.pool_checks import check_pool
from capacity.inputs.pool_files import Row
from tests.coordinator.sample_status import peer, sample_broadcast, sample_status

LINK = {"uplink_bytes_per_s": 5e6, "downlink_bytes_per_s": 25e6}


def answers(*peers: dict[str, Any], **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    origin = peer("origin", role="origin")
    status = sample_status(peers=[origin, *peers], **changes)
    links = [{"peer_id": one["peer_id"], "role": one["role"], **LINK} for one in status["peers"]]
    return status, sample_broadcast() | {"peers": links}


def worker(name: str, **changes: Any) -> dict[str, Any]:
    return peer(name, **{"standby": False, "pin": "", "usd_per_hour": 0.0, **changes})


def test_peers_that_work_become_rows_that_can_be_used() -> None:
    status, broadcast = answers(worker("peer-1"), worker("other-22", usd_per_hour=0.4, standby=True, pin="off"))
    run = live_run(status, broadcast)
    pool = check_pool(run.rows, {"egress_usd_per_gb": 0.0})
    assert pool.skipped == ()
    first, second = pool.taken
    assert (first.upload_mbit_per_second, first.download_mbit_per_second) == (40.0, 200.0)
    assert (first.tokens_per_second, first.concurrency, first.donated, first.active) == (4120.0, 64, True, True)
    assert (second.usd_per_hour, second.donated, second.active, second.pin) == (0.4, False, False, "off")


def test_the_demand_is_as_measured() -> None:
    demand = live_run(*answers(worker("peer-1"))).demand
    assert (demand["staleness_limit"], demand["rollouts_per_step"], demand["t_train_s"]) == (4, 64, 0.9)
    assert demand["learner_upload_mbit_per_second"] == 40.0
    assert demand["update_bytes"] > 0
    unknown = live_run(*answers(worker("peer-1"), t_train_s=None)).demand
    assert "t_train_s" not in unknown


def test_who_is_gone_or_not_measured_is_not_guessed() -> None:
    status, broadcast = answers(
        worker("a", state="lost"), worker("bb", quarantined=True), worker("ccc", tokens_per_s=0.0)
    )
    run = live_run(status, broadcast)
    assert [row.values["worker_id"] for row in run.rows] == ["ccc"]
    assert run.unmeasured == ("ccc",)
    assert "tokens_per_second" not in run.rows[0].values


def test_measured_figures_replace_the_files_and_prices_stay() -> None:
    status, broadcast = answers(worker("peer-1"), worker("other-22"))
    file = [Row("line 2", {"worker_id": "peer-1", "usd_per_hour": 0.7, "upload_mbit_per_second": 9, "region": "home"})]
    together = merged(file, live_run(status, broadcast).rows)
    assert [row.values["worker_id"] for row in together] == ["peer-1", "other-22"]
    assert together[0].values["usd_per_hour"] == 0.7
    assert together[0].values["upload_mbit_per_second"] == 40.0
    assert together[0].values["region"] == "home"
    assert "donated" not in together[0].values


def test_another_server_is_not_taken_for_a_coordinator() -> None:
    with pytest.raises(KeyError):
        live_run({"peers": [{}]}, {"peers": []})
