"""Test pools that are queried: the workers of a running coordinator, and offers of a module shaped like gpuhunt
0.1.34, where `query(...)` gives items; the real one asks the network.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from capacity.inputs.pool.checks import check_pool
from capacity.inputs.pool.files import Row
from capacity.inputs.pool.gpuhunt_offers import OfferFilter, rentable
from capacity.inputs.pool.live import live_run, merged
from rollcast.runtime.errors import MissingExtra, OffersUnavailable
from tests.coordinator.sample_status import peer, sample_broadcast, sample_status


@dataclass
class CatalogItem:
    """Fields and types of gpuhunt's own."""

    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


ITEMS = [
    CatalogItem("verda", "1A100.22V", "FIN-01", 1.29, 1, "A100", 80.0, False),
    CatalogItem("verda", "1A100.22V", "FIN-01", 0.45, 1, "A100", 80.0, True),
    CatalogItem("aws", "p4d.24xlarge", "us-east-1", 21.96, 8, "A100", 40.0, False),
    CatalogItem("vastai", "123", "Sweden", 0.0, 1, "RTX4090", 24.0, False),
]


@pytest.fixture
def gpuhunt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    def install(query: Callable[..., Any]) -> None:
        module, version = types.ModuleType("gpuhunt"), types.ModuleType("gpuhunt.version")
        module.query = query  # type: ignore[attr-defined]
        version.__version__ = "0.1.34"  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "gpuhunt", module)
        monkeypatch.setitem(sys.modules, "gpuhunt.version", version)

    return install


def test_offers_become_rows_and_what_they_do_not_say_is_reported(gpuhunt: Callable[..., None]) -> None:
    asked: dict[str, Any] = {}

    def query(**filters: Any) -> list[CatalogItem]:
        asked.update(filters)
        return ITEMS

    gpuhunt(query)
    rows = rentable(OfferFilter(providers=("verda",), usd_per_hour_max=30.0), "2026-11-22")
    assert (asked["provider"], asked["max_price"], asked["min_gpu_count"]) == (["verda"], 30.0, 1)
    first = rows[0].values
    assert (first["hardware"], first["region"], first["spot"]) == ("a100-pcie", "verda:FIN-01", False)
    assert (first["price_source"], first["price_date"]) == ("gpuhunt 0.1.34", "2026-11-22")
    assert rows[2].values["hardware"] == "a100-pcie-40gb"
    bare = check_pool(rows)
    links = "upload_mbit_per_second, download_mbit_per_second"  # the price of AWS's traffic is in the catalogue
    needed = f"{links}, egress_usd_per_gb"
    spot = f"{needed}, preemptions_per_hour"
    assert {one.column for one in bare.skipped} == {links, needed, spot, "usd_per_hour"}
    links = {"upload_mbit_per_second": 500, "download_mbit_per_second": 500, "egress_usd_per_gb": 0.01}
    pool = check_pool(rows, {**links, "preemptions_per_hour": 0.1})
    assert [row.spot for row in pool.taken] == [False, True, False]
    assert [one.reason for one in pool.skipped] == ["zero"]
    assert len({row.worker_id for row in pool.taken}) == 3


def test_a_provider_that_does_not_answer_is_not_waited_for(gpuhunt: Callable[..., None]) -> None:
    forever = threading.Event()
    gpuhunt(lambda **_: forever.wait())
    with pytest.raises(OffersUnavailable, match="no answer within"):
        rentable(OfferFilter(), "2026-11-22", deadline_s=0.01)
    forever.set()


def test_failures_of_gpuhunt_are_reported(gpuhunt: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def query(**_: Any) -> None:
        raise ValueError("Unknown provider: nobody")

    gpuhunt(query)
    with pytest.raises(OffersUnavailable, match="Unknown provider: nobody"):
        rentable(OfferFilter(providers=("nobody",)), "2026-11-22")
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(MissingExtra, match="offers"):
        rentable(OfferFilter(), "2026-11-22")


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


def test_absent_and_unmeasured_peers_get_no_row() -> None:
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


def test_speeds_in_rollouts_follow_from_the_tokens_of_the_newest_steps() -> None:
    """A run of four-token answers is not as slow as one of the lengths that the shipped demand assumes."""
    status, broadcast = answers(worker("peer-1"))
    assert "rollouts_per_second" not in live_run(status, broadcast).rows[0].values
    steps = {"columns": ["step", "tokens"], "rows": [[1, None], [2, 4 * 64 - 1.0], [3, 4 * 64 + 1.0]]}
    (row,) = live_run(status, broadcast, steps).rows
    assert (row.values["tokens_per_second"], row.values["rollouts_per_second"]) == (4120.0, 1030.0)
    assert row.values["t_gen_p90_s"] == 4.8, "as the run measured it, not by the shipped lengths"
