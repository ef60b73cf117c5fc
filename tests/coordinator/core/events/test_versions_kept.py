from __future__ import annotations

from coordinator.core.events.versions_kept import VersionsKept
from rollcast.wire.ids import Version


def test_what_is_kept_outlives_the_process() -> None:
    kept = VersionsKept(age_max=5, oldest=Version(8))
    assert VersionsKept.from_json(kept.to_json()) == kept
