"""Write the record of a run: a line of metrics.jsonl per step, and summary.json and reward.png at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from coordinator.config.config import CoordinatorConfig
from coordinator.core.status.peers import workers_here
from rollcast.runtime import charts, finite_json
from rollcast.runtime.errors import MissingExtra, RunFolderError
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_json
from rollcast.runtime.version import software_version

log = structlog.get_logger()

SUMMARY_KEYS_FROM_STATUS = (
    "run_name",
    "run_id",
    "phase",
    "ended_because",
    "step",
    "steps",
    "reward_before",
    "reward_after",
    "exact_before",
    "exact_after",
    "warm_start_s",
    "warm_start_accuracy",
    "staleness_limit",
    "staleness_max_trained",
    "publish_every_steps",
    "peer_byte_share",
    "learner_utilisation",
    "spending",
)


def step_metrics(status: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return one line of metrics.jsonl: the learner's metrics of the step and the run's at that moment."""
    return {
        **values,
        "reward": values.get("reward_mean", status.get("reward_train")),
        "newest_version": status.get("newest_version"),
        "staleness_histogram": status.get("staleness_histogram"),
        "staleness_max_trained": status.get("staleness_max_trained"),
        "age_split": ((status.get("staleness") or {}).get("split") or {}).get("last"),
        "t_bcast_last_s": (status.get("t_bcast_s") or {}).get("last"),
        "tokens_per_s": status.get("tokens_per_s"),
        "peers": workers_here(status.get("peers_by_state", ())),
        "elapsed_s": status.get("elapsed_s"),
    }


def build_summary(status: Mapping[str, Any], config: CoordinatorConfig) -> dict[str, Any]:
    """Return the run's summary. Unknown values are null, never left out."""
    rollouts = status.get("rollouts") or {}
    t_bcast = status.get("t_bcast_s") or {}
    return {
        **{key: status.get(key) for key in SUMMARY_KEYS_FROM_STATUS},
        "version": status.get("newest_version"),
        "epoch": status.get("epoch"),
        "evaluations": dict(status.get("evaluations") or {}),
        "staleness": _staleness(status.get("staleness") or {}),
        "t_bcast_s": {"p50": t_bcast.get("p50"), "p95": t_bcast.get("p95")},
        "rollouts": {
            "issued": rollouts.get("issued", 0),
            "accepted": rollouts.get("accepted", 0),
            "trained": rollouts.get("trained", 0),
            "turns": rollouts.get("turns", 0),
            "open": rollouts.get("open", 0),
            "dropped": dict(rollouts.get("dropped") or {}),
        },
        "episodes": dict(status.get("episodes") or {}),
        "wall_s": status.get("elapsed_s"),
        "seeds": {"run": config.run.seed},
        "software": f"rollcast {software_version()}",
    }


def _staleness(staleness: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits at the end, the late policy's effects, and the parts of all trained rollouts' ages."""
    kept = ("limit", "age_max", "late_policy", "publish_every_steps", "publish_auto", "late")
    return {**{key: staleness.get(key) for key in kept}, "split": (staleness.get("split") or {}).get("total")}


def write_summary(folder: RunFolder, status: Mapping[str, Any], config: CoordinatorConfig) -> dict[str, Any]:
    """Write reward.png, then summary.json, whose presence shows that all is written. Blocks for seconds: use a thread.

    Raises:
        RunFolderError: summary.json cannot be written. A failed plot is only logged.
    """
    summary = build_summary(status, config)
    try:
        plot_reward(folder.reward_plot, summary, status.get("reward_history") or ())
    except (MissingExtra, RunFolderError) as error:
        log.warning("reward curve not plotted", cause=str(error))
    try:
        write_json(folder.summary, finite_json.finite(summary))
    except OSError as error:
        raise run_folder_error(folder.root, error) from None
    return summary


def plot_reward(path: Path, summary: Mapping[str, Any], history: Sequence[Sequence[float]]) -> None:
    """Draw reward against learner step, with the held-out reward before and after as marks.

    Raises:
        MissingExtra: matplotlib is not installed (extra `coordinator`).
        RunFolderError: the file cannot be written.
    """
    figure, axes = charts.new_chart(f"{summary['run_name']}: reward")
    steps, rewards = [point[0] for point in history], [point[1] for point in history]
    colour = charts.COLOURS[0]
    axes.plot(steps, rewards, color=colour, alpha=0.4, linewidth=1.0, label="training batches")
    axes.plot(steps, smooth(rewards), color=colour, linewidth=2.0, label="training batches, smoothed")
    last = summary["step"] or 0
    for name, reward, step in (("before", summary["reward_before"], 0), ("after", summary["reward_after"], last)):
        if reward is not None:
            charts.mark_point(axes, step, reward, f"held out, {name}: {reward:.2f}", right=name == "after")
    axes.set_xlim(0, max([1, last, *steps]))
    axes.set_ylim(0, 1.02 if max([0.0, *rewards]) <= 1.0 else None)
    charts.integer_ticks(axes.xaxis)
    axes.set(xlabel="learner step", ylabel="mean reward")
    charts.add_legend(figure)
    charts.save(figure, path)


def smooth(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average, corrected for its start (as Adam's moments are)."""
    smoothed, total, mass = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1.0 - weight) * value
        mass = weight * mass + (1.0 - weight)
        smoothed.append(total / mass)
    return smoothed
