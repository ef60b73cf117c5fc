from __future__ import annotations

import pytest
from pydantic import ValidationError

from coordinator.config.config import RunConfig


def test_a_limit_that_the_publication_period_cannot_keep_is_refused() -> None:
    assert RunConfig(staleness_limit=2, publish_every_steps=3).staleness_limit == 2
    with pytest.raises(ValidationError, match="staleness_limit = 1 cannot be kept with publish_every_steps = 3"):
        RunConfig(staleness_limit=1, publish_every_steps=3)


def test_what_is_trained_may_be_older_than_s_only_where_it_is_corrected_for() -> None:
    assert RunConfig(staleness_limit=4, late_steps_max=3).age_max == 4
    assert RunConfig(staleness_limit=4, late_steps_max=3, late_policy="correct").age_max == 7
