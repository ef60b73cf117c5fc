"""With a module of the shape of gpuhunt 0.1.34: query(...) -> items; the real one asks the network."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from capacity.inputs.gpuhunt_offers import OfferFilter, rentable
from capacity.inputs.pool_checks import check_pool
from rollcast.runtime.errors import MissingExtra, OffersUnavailable


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
    assert rows[2].values["hardware"] == "A100"  # 40 GB: not the one of the catalogue
    bare = check_pool(rows)
    assert {one.column for one in bare.skipped} == {"upload_mbit_per_second", "preemptions_per_hour", "usd_per_hour"}
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


def test_what_goes_wrong_in_it_is_told(gpuhunt: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def query(**_: Any) -> None:
        raise ValueError("Unknown provider: nobody")

    gpuhunt(query)
    with pytest.raises(OffersUnavailable, match="Unknown provider: nobody"):
        rentable(OfferFilter(providers=("nobody",)), "2026-11-22")
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(MissingExtra, match="offers"):
        rentable(OfferFilter(), "2026-11-22")
