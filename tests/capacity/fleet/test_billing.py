"""What a worker costs."""

from __future__ import annotations

import pytest

from capacity.fleet.billing import Terms


@pytest.mark.parametrize(
    ("terms", "seconds", "usd"),
    [
        (Terms(usd_per_hour=3.6), 0.0, 0.0),
        (Terms(usd_per_hour=3.6), 10.0, 0.01),
        (Terms(usd_per_hour=3.6, granularity_s=60.0), 61.0, 0.12),
        (Terms(usd_per_hour=3.6, granularity_s=3600.0), 1.0, 3.6),
        (Terms(usd_per_hour=3.6, minimum_s=600.0), 0.0, 0.6),
        (Terms(usd_per_hour=3.6, minimum_s=600.0), 700.0, 0.7),
    ],
)
def test_machines_are_billed_in_whole_units_and_at_least_the_minimum(terms: Terms, seconds: float, usd: float) -> None:
    assert terms.machine_usd(seconds) == pytest.approx(usd)


def test_egress_is_bounded_by_the_cap() -> None:
    terms = Terms(usd_per_hour=0.4, egress_usd_per_gb=0.09, upload_bytes_per_second=1e6)
    assert terms.egress_usd(1e9) == pytest.approx(0.09)
    assert terms.egress_usd_per_hour_max == pytest.approx(0.324)
    assert terms.committed_usd_per_hour == pytest.approx(0.724)
