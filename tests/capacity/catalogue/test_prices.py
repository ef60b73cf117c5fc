from __future__ import annotations

from capacity.catalogue.gpus import gpus
from capacity.catalogue.prices import gpu_prices


def test_every_price_has_a_source_a_date_and_known_hardware() -> None:
    assert len(gpu_prices()) == 24
    for price in gpu_prices():
        assert price.hardware in gpus()
        assert "@" in price.source
        assert price.read_on == "2026-11-22"
        assert price.kind in ("marketplace", "on-demand", "spot")
        assert 0.1 < price.usd_per_gpu_hour < 10


def test_a_price_is_of_the_machine_and_per_device_its_share() -> None:
    (pair,) = [price for price in gpu_prices() if price.hardware == "rtx-3090"]
    assert (pair.gpus, pair.usd_per_hour, pair.usd_per_gpu_hour) == (2, 0.33, 0.165)
