from __future__ import annotations

import numpy as np
import pytest

from bench.capacity.region_links import egress_usd_per_gb, region_links, regions, ten_regions


def test_every_pair_of_cloud_regions_has_a_link() -> None:
    links = region_links()
    assert len(regions()) == 64
    assert len(links) == 64 * 63
    assert sum(link.round_trip_s is None for link in links.values()) == 372
    assert sum(link.egress_usd_per_gb is None for link in links.values()) == 840


def test_units_are_bytes_and_seconds() -> None:
    link = region_links()["aws:af-south-1", "aws:ap-east-1"]
    assert link.bytes_per_second == 1871.5e6 / 8
    assert link.round_trip_s == pytest.approx(0.24878)
    assert link.egress_usd_per_gb == 0.147


def test_egress_of_a_region_is_the_median_of_its_links() -> None:
    assert egress_usd_per_gb("aws:us-east-1") == 0.09
    assert egress_usd_per_gb("mars:olympus-1") is None


def test_ten_regions_are_alike_both_ways() -> None:
    matrix = ten_regions()
    assert len(matrix.regions) == 10
    assert np.array_equal(matrix.bytes_per_second, matrix.bytes_per_second.T)
    assert np.isinf(np.diag(matrix.bytes_per_second)).all()
    a, b = matrix.regions.index("Oregon"), matrix.regions.index("Virginia")
    assert (matrix.bytes_per_second[a, b], matrix.delay_s[a, b]) == (0.79e9 / 8, 0.067)
