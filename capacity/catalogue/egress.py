"""Look up what traffic that leaves a cloud region costs. Origin: data/skyplane/README.md."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from capacity.catalogue.csv_tables import read_rows

FOLDER = "skyplane"
_ZONE = re.compile(r"-[a-z]$")  # gcp:us-central1-a is a zone of gcp:us-central1


def egress_usd_per_gb(region: str) -> float | None:
    """Return the list price in $/GB of traffic out of a region or zone (``aws:us-east-1``); None if it is not known."""
    return _prices().get(_ZONE.sub("", region.strip().lower()))


@functools.cache
def _prices() -> Mapping[str, float]:
    return {
        _ZONE.sub("", row["region"]): float(row["egress_usd_per_gb"]) for row in read_rows(FOLDER, "region_egress.csv")
    }
