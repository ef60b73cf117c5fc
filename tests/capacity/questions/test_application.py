"""Test what applying a plan to a run's fleet would do."""

from __future__ import annotations

import pytest

from capacity.questions.application import application_of, place_of
from rollcast.runtime.errors import PlanFileError
from tests.capacity.providers.pool_machines import pool_row
from tests.capacity.sample_fleet import chosen_document, fleet_of, offered
from tests.capacity.sample_plan import infeasible_sample, sample_document


def test_steps_compare_the_plan_with_the_fleet() -> None:
    fleet = fleet_of(
        offered("local-1", usd_per_hour=4.0),
        offered("local-2", state="failed", wanted=True, why="no answer"),
        offered("other", state="on", wanted=True, where="process 7"),
        offered("idle"),
    )
    steps = application_of(chosen_document("local-1", "local-2", "cloud", "donor"), fleet, stop_others=False)
    assert [(one.worker_id, one.step) for one in steps.steps] == [
        ("local-1", "start"),
        ("local-2", "runs"),
        ("cloud", "cannot"),
        ("donor", "cannot"),
        ("other", "keeps"),
    ]
    first, second, cloud, donor, _ = steps.steps
    assert (first.where, first.price_differs, second.price_differs) == ("the coordinator's machine", True, False)
    assert (second.why, "--emit terraform" in cloud.why, "invite" in donor.why) == ("failed: no answer", True, True)
    assert [
        one.worker_id for one in application_of(chosen_document("local-1"), fleet, stop_others=True).of("stop")
    ] == [
        "local-2",
        "other",
    ]
    with pytest.raises(PlanFileError, match="no worker"):
        application_of(sample_document(infeasible_sample()), fleet, stop_others=False)


def test_places_are_named_in_words() -> None:
    assert place_of(pool_row(worker_id="gpu1", start="ssh")) == "gpu1"
    assert place_of(pool_row(start="ssh", address="me@host:22")) == "me@host:22"
    spot = pool_row(start="sky", infra="gcp", spot=True, preemptions_per_hour=1)
    assert place_of(spot) == "gcp, l4, spot"
    assert place_of(pool_row(start="sky")) == "the cheapest cloud, l4"
