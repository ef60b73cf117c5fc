"""Find runs that do not learn, or unlearn: no reward, no signal, a falling reward, completions that are cut short.

A fix names the process whose file has the key: in the file of `rollcast up` the key stands in that process's section.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinator.core.members.progress import StepSignal
from coordinator.views.alerts import Found

STEPS = 20  # learner steps over which a problem must last
WINDOW = 10  # learner steps of the means that are compared
FALLEN_SHARE = 0.4  # of the best mean, lost
REWARD_LEAST = 0.05  # best mean below which a fall means nothing
COLLAPSED_SHARE = 0.2  # entropy, of that when the reward was best
CUT_SHORT_SHARE = 0.25
ENTROPY_LOST_SHARE = 0.1  # of the entropy of the first steps, below which the policy hardly explores
REWARD_GAINED = 0.02  # rise of the mean reward that makes a loss of entropy worth it


def find_learning_alerts(steps: Sequence[StepSignal], learning_rate: float | None, tokens_max: int) -> Iterator[Found]:
    """Yield what is wrong with the learning itself.

    Args:
        steps: the newest steps' figures, oldest first.
        learning_rate: of the newest step; None if it is not known.
        tokens_max: most tokens of a completion (sampling.new_tokens_max).
    """
    last = steps[-STEPS:]
    if len(last) < STEPS:
        return
    if all(one.reward == 0.0 for one in last):
        yield Found(
            "no_reward",
            "warning",
            f"The reward has been 0 for {STEPS} steps: the policy has solved nothing.",
            "Read answers with `rollcast samples --wrong`: either the check refuses right ones, or the problems are "
            "too hard. Then correct the check, mix in easier problems, or raise the learner's warm_start.steps_max.",
            "run",
        )
    elif all(one.flat_groups_share == 1.0 for one in last):
        yield Found(
            "no_signal",
            "warning",
            f"In every prompt group of the last {STEPS} steps all rewards are equal: there is nothing to learn from.",
            "Use problems that the policy solves at times (`rollcast curate` with --profile, --low 0.1 and --high "
            "0.9), raise the coordinator's run.samples_per_group, or set its selection.by_volatility.",
            "run",
        )
    fallen = list(_fallen(steps, learning_rate))
    yield from fallen or _stopped_exploring(steps)
    cut = [one.cut_short_share for one in last if one.cut_short_share is not None]
    if cut and _mean(cut) > CUT_SHORT_SHARE:
        text = (
            f"{_mean(cut):.0%} of the completions of the last {STEPS} steps ended at the limit of {tokens_max} tokens."
        )
        fix = (
            "Raise the coordinator's sampling.new_tokens_max, or set the learner's objective.overlong_share, so that "
            "long answers cost reward."
        )
        yield Found("cut_short", "warning", text, fix, "run")


def _fallen(steps: Sequence[StepSignal], learning_rate: float | None) -> Iterator[Found]:
    """Yield an alert if the reward fell far below its best, and say whether the policy stopped exploring as well."""
    means = [_mean([one.reward for one in steps[end - WINDOW : end]]) for end in range(WINDOW, len(steps) + 1)]
    best = max(means)
    if best < REWARD_LEAST or means[-1] > (1.0 - FALLEN_SHARE) * best:
        return
    at = means.index(best)
    text = f"The reward fell from {best:.2f} at step {steps[at + WINDOW - 1].step} to {means[-1]:.2f}."
    then = [one.entropy for one in steps[at : at + WINDOW] if one.entropy is not None]
    now = [one.entropy for one in steps[-WINDOW:] if one.entropy is not None]
    if then and now and _mean(now) < COLLAPSED_SHARE * _mean(then):
        text += f" Entropy fell with it, from {_mean(then):.2g} to {_mean(now):.2g} nats a token: it hardly explores."
    rate = "" if learning_rate is None else f" (now {learning_rate:.2g})"
    fix = (
        f"Lower the learner's optimiser.learning_rate{rate}, tenfold to begin with, and continue from a checkpoint "
        "before that step; published models need about 1e-6."
    )
    yield Found("reward_fell", "warning", text, fix, "run")


def _stopped_exploring(steps: Sequence[StepSignal]) -> Iterator[Found]:
    """Yield an alert if entropy collapsed and the reward did not rise: a policy that learns loses some entropy."""
    first, last = steps[:WINDOW], steps[-WINDOW:]
    before = [one.entropy for one in first if one.entropy is not None]
    now = [one.entropy for one in last if one.entropy is not None]
    if not before or not now or _mean(now) >= ENTROPY_LOST_SHARE * _mean(before):
        return
    reward_before, reward_now = (_mean([one.reward for one in part]) for part in (first, last))
    if reward_now - reward_before > REWARD_GAINED:
        return
    yield Found(
        "entropy_collapsed",
        "warning",
        f"Entropy fell from {_mean(before):.2g} to {_mean(now):.2g} nats a token, and the reward did not rise "
        f"({reward_before:.2f} to {reward_now:.2f}): the policy hardly explores any more.",
        "Continue from a checkpoint before the fall with a lower optimiser.learning_rate or an "
        "objective.entropy_coefficient above 0 (learner), or a higher sampling.temperature (coordinator).",
        "run",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
