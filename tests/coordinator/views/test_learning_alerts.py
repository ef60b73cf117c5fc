from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.events.events import StepFinished
from coordinator.core.members.progress import StepSignal
from coordinator.views.alerts import Found, Health
from coordinator.views.learning_alerts import STEPS, find_learning_alerts
from coordinator.views.registry import ViewedRun, ViewRegistry
from rollcast.wire.ids import Step
from tests.coordinator.views.viewed import NOW, world


def steps(
    rewards: Sequence[float], *, entropy: Sequence[float] = (), flat: float = 0.3, cut: float = 0.0
) -> list[StepSignal]:
    return [
        StepSignal(number, reward, entropy[number - 1] if entropy else 0.1, flat, cut)
        for number, reward in enumerate(rewards, start=1)
    ]


def alerts(signals: Sequence[StepSignal], rate: float | None = 5e-4) -> dict[str, Found]:
    return {one.id: one for one in find_learning_alerts(signals, rate, 1024)}


def test_a_run_that_learns_has_no_alert() -> None:
    rising = [0.3 + 0.6 * number / 100 for number in range(100)]
    assert alerts(steps(rising, entropy=[0.18 * (1 - number / 120) for number in range(100)])) == {}
    noisy = [0.9 if number % 2 else 0.7 for number in range(60)]
    assert alerts(steps(noisy)) == {}
    assert alerts(steps([0.0] * (STEPS - 1))) == {}  # too early to say


def test_a_reward_of_0_names_the_check_and_the_difficulty() -> None:
    found = alerts(steps([0.0] * STEPS, flat=1.0))
    assert set(found) == {"no_reward"}
    assert "rollcast samples --wrong" in found["no_reward"].fix


def test_groups_without_a_difference_teach_nothing() -> None:
    found = alerts(steps([1.0] * STEPS, flat=1.0))
    assert set(found) == {"no_signal"}
    assert alerts(steps([1.0] * STEPS, flat=0.9)) == {}


def test_a_reward_that_falls_names_the_learning_rate() -> None:
    """Number sorting fell from 0.72 to 0.23 in 20 steps at a rate of 5e-4, and no screen said so."""
    falling = [0.72] * 20 + [0.72 - 0.49 * number / 20 for number in range(20)] + [0.23] * 5
    found = alerts(steps(falling))["reward_fell"]
    assert found.text.startswith("The reward fell from 0.72 at step 10 to 0.2")
    assert "now 0.0005" in found.fix
    collapsed = alerts(steps(falling, entropy=[0.5] * 20 + [0.01] * 25))["reward_fell"]
    assert "Entropy fell with it, from 0.5 to 0.01" in collapsed.text
    assert "reward_fell" not in alerts(steps([0.72] * 20 + [0.5] * 20))


def test_an_entropy_that_collapses_without_a_gain_is_reported() -> None:
    gone = [0.5] * 20 + [0.02] * 20
    found = alerts(steps([0.4] * 40, entropy=gone))
    assert set(found) == {"entropy_collapsed"}
    assert "from 0.5 to 0.02 nats" in found["entropy_collapsed"].text
    assert alerts(steps([0.4] * 20 + [0.9] * 20, entropy=gone)) == {}, "it learned"


def test_completions_that_end_at_the_limit_are_reported() -> None:
    found = alerts(steps([0.5] * STEPS, cut=0.4))["cut_short"]
    assert "40% of the completions" in found.text
    assert "1024 tokens" in found.text


def test_the_screens_get_these_alerts_from_what_the_learner_reports() -> None:
    run = world("a")
    registry = ViewRegistry(ViewedRun(run.core, lambda: NOW, lambda: NOW, lambda: None, Health))
    for number in range(1, STEPS + 1):
        run.handle(StepFinished(Step(number), {"reward_mean": 0.0, "entropy": 0.1, "flat_groups_share": 1.0}))
    assert "no_reward" in {one.id for one in registry.overview().alerts}
