from __future__ import annotations

from capacity.model.assumptions import Assumption


def test_what_the_user_decided_is_exact() -> None:
    assert Assumption("staleness limit", 4, "learner steps", "given").relative_uncertainty == 0.0
