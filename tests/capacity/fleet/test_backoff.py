"""Test how long failed workers and providers are not used."""

from __future__ import annotations

from capacity.fleet.backoff import Backoff, Breaker, PatienceSettings, ProviderPatience


def most(low: float, high: float) -> float:
    return high


def test_backoff_doubles_up_to_its_ceiling_and_begins_again_after_a_success() -> None:
    backoff, waits = Backoff(), []
    for _ in range(5):
        backoff.failed(0.0, most, first_s=10.0, most_s=60.0)
        waits.append(backoff.not_before)
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0]
    backoff.succeeded()
    backoff.failed(0.0, lambda low, high: low, first_s=10.0, most_s=60.0)
    assert backoff.not_before == 5.0


def test_a_breaker_opens_tries_one_and_closes() -> None:
    breaker = Breaker(failures_max=2, open_s=100.0, open_s_max=150.0)
    assert not breaker.failed("a", 0.0, most)
    assert breaker.allows(0.0)
    assert breaker.failed("b", 0.0, most)
    assert not breaker.allows(99.0)
    assert not breaker.failed("c", 50.0, most)  # it was in progress already
    assert breaker.allows(100.0)
    breaker.started("d")
    assert not breaker.allows(101.0)  # one trial at a time
    assert breaker.failed("d", 110.0, most)
    assert (breaker.allows(259.0), breaker.allows(260.0)) == (False, True)
    breaker.started("e")
    breaker.discard("e")
    assert breaker.allows(260.0)
    breaker.started("f")
    breaker.succeeded()
    assert breaker.allows(0.0)


def test_workers_and_providers_back_off_independently() -> None:
    patience = ProviderPatience(PatienceSettings(failures_max=2), most)
    assert patience.failed("w", "w.1", "p", 0.0) == ""
    assert patience.refusal("w", "p", 1.0) == "it failed before and is not started again for a while"
    assert patience.refusal("v", "p", 1.0) == ""
    assert patience.failed("v", "v.1", "p", 1.0) == "2 consecutive starts failed; none is tried for 120 s"
    assert patience.refusal("u", "p", 2.0).startswith("starts at p fail")
    assert patience.refusal("u", "q", 2.0) == ""
    patience.joined("p")
    assert patience.refusal("u", "p", 2.0) == ""
