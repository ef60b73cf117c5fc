from __future__ import annotations

import pytest

from rollcast.runtime.errors import ConfigError
from tests.coordinator.core_world import settings


def test_a_limit_that_the_publication_period_cannot_keep_is_refused() -> None:
    assert settings(staleness_limit=2, publish_every_steps=3).staleness_limit == 2
    with pytest.raises(ConfigError, match="staleness_limit = 1 cannot be kept with publish_every_steps = 3"):
        settings(staleness_limit=1, publish_every_steps=3)


def test_slot_capacity_counts_the_running_batch() -> None:
    assert settings(prefetch_batches=2.5).slot_capacity(4) == 10
    assert settings().slot_capacity(0) == 0
