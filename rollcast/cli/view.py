"""Show a run live in a terminal, as plain lines in a log, and as a table at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollcast.cli.live.control import alert_line
from rollcast.cli.live.workers import state_word

Status = Mapping[str, Any]
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 60
_PLAIN_EVERY_S = 5.0
_WAIT_SHOWN_S = 1.0  # once steps are trained; something is always waited for a moment
_NAMES_SHOWN = 2
_ALERTS_SHOWN = 3
#: The learner's own step counts as a wait once it takes so many times the median, and so many seconds.
_STEP_SHOWN_TIMES, _STEP_SHOWN_S = 3.0, 30.0
_AGE_PARTS = ("train", "broadcast", "queue", "generate", "return")


class LiveView:
    """Redraws one screen in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def starting(self, doing: str) -> None:
        """Show what the coordinator does before it answers."""
        self._live.update(Text(f"starting    {doing}"))

    def update(self, status: Status, ended: Mapping[str, int]) -> None:
        """Show a status (the coordinator's /api/v1/status) and the exit statuses of processes that have ended."""
        self._live.update(render(status, ended))

    def close(self) -> None:
        """Stop drawing and restore the terminal."""
        self._live.stop()


class PlainView:
    """Prints one line every few seconds and at every change of the learner's phase, and each alert once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_at = 0.0
        self._phase = ""
        self._alerts: set[str] = set()

    def starting(self, doing: str) -> None:
        """Print what the coordinator does before it answers, if a line is due."""
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _PLAIN_EVERY_S
            self._console.print(f"starting    {doing}", soft_wrap=True, highlight=False, markup=False)

    def update(self, status: Status, ended: Mapping[str, int]) -> None:
        """Print new alerts, and a line if one is due."""
        for alert in status.get("alerts", ()):
            if alert["id"] not in self._alerts:
                self._alerts.add(alert["id"])
                self._console.print(alert_line(alert), soft_wrap=True, highlight=False, markup=False)
        now = time.monotonic()
        phase = str(status["learner_phase"])
        if now < self._next_at and phase == self._phase:
            return
        self._next_at, self._phase = now + _PLAIN_EVERY_S, phase
        self._console.print(line(status), soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Do nothing: plain lines need no clean-up."""


def line(status: Status) -> str:
    """Return the run's status in one line."""
    from coordinator.core.status.peers import workers_here  # not at the top: importing the core takes a while

    t_bcast = status["t_bcast_s"]
    return (
        f"[{_duration(status['elapsed_s'])}] {phase_of(status)}: {_step(status)}"
        f"  version {_number(status['newest_version'])}  reward {_number(status['reward_train'])}"
        f"  T_bcast p95 {_number(t_bcast['p95'])} s  {_number(status['tokens_per_s'], 0)} tokens/s"
        f"  peers {workers_here(status['peers_by_state'])}  {_waiting(status)}"
    )


def phase_of(status: Status) -> str:
    """Return what the learner does in words; a learner that has not connected yet is starting."""
    return str(status["learner_phase"] or "starting").replace("_", " ")


def render(status: Status, ended: Mapping[str, int]) -> RenderableType:
    """Return the whole screen."""
    title = f"rollcast · {status['run_name']} · {_duration(status['elapsed_s'])}"
    parts: list[RenderableType] = [
        _progress(status),
        _figures(status),
        Text(_waiting(status), style="yellow"),
        *(Text(alert_line(one), style="yellow") for one in status.get("alerts", ())[:_ALERTS_SHOWN]),
        _rewards(status),
        _staleness(status),
        _ages(status),
        _peers(status["peers"], int(status["peers_left_out"])),
        _rollouts(status["rollouts"]),
    ]
    dead = {name: code for name, code in ended.items() if code != 0}
    if dead:
        parts.append(Text("ended: " + ", ".join(f"{name} (status {code})" for name, code in dead.items()), style="red"))
    return Panel(Group(*parts), title=title, border_style="cyan")


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """Return values in 0..1 as block characters, the newest on the right; long series are averaged to ``width``."""
    if not values:
        return ""
    count = min(width, len(values))
    bounds = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds) if high > low]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(0, min(top, round(mean * top)))] for mean in means)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return summary.json as a table."""
    rollouts, t_bcast = summary["rollouts"], summary["t_bcast_s"]
    table = Table("figure", "value", title="summary", title_style="bold")
    table.add_row(
        "reward on held-out problems", f"{_number(summary['reward_before'])} -> {_number(summary['reward_after'])}"
    )
    table.add_row("exact match on them", f"{_number(summary['exact_before'])} -> {_number(summary['exact_after'])}")
    oldest, limit = summary["staleness_max_trained"], summary["staleness_limit"]
    lowered = oldest is not None and oldest > limit  # each batch keeps the limit of its step
    when = f" at the end; the limit was {oldest} or more when it was trained" if lowered else ""
    table.add_row("oldest rollout trained", f"{_number(oldest)} (S = {limit}{when})")
    table.add_row("mean age of rollouts trained", age_words(summary["staleness"]["split"]))
    table.add_row("chunk bytes served by peers", _percent(summary["peer_byte_share"]))
    table.add_row(
        "rollouts issued / trained / open", f"{rollouts['issued']} / {rollouts['trained']} / {rollouts['open']}"
    )
    if rollouts["turns"]:
        table.add_row("turns of episodes before the last", str(rollouts["turns"]))
        table.add_row("episodes ended", _ended(summary["episodes"]))
    table.add_row("rollouts dropped", _dropped(rollouts))
    table.add_row("learner utilisation", _percent(summary["learner_utilisation"]))
    table.add_row("T_bcast p50 / p95", f"{_number(t_bcast['p50'])} / {_number(t_bcast['p95'])} s")
    table.add_row("wall time", f"{summary['wall_s']:.0f} s")
    return table


def _progress(status: Status) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    phase = f"{phase_of(status)} {status['learner_detail']}".strip()
    grid.add_row(
        ProgressBar(total=max(1, status["steps"]), completed=status["step"], width=40),
        _step(status),
        f"version {_number(status['newest_version'])}",
        Text(phase, style="bold"),
    )
    return grid


def _step(status: Status) -> str:
    stage = f" (stage {status['stage']})" if status["stage"] else ""
    return f"step {status['step']}/{status['steps']}{stage}"


def _figures(status: Status) -> RenderableType:
    t_bcast = status["t_bcast_s"]
    figures = {
        "reward": _number(status["reward_train"]),
        "held-out before": _number(status["reward_before"]),
        "after": _number(status["reward_after"]),
        "T_bcast p50/p95": f"{_number(t_bcast['p50'])}/{_number(t_bcast['p95'])} s",
        "tokens/s": _number(status["tokens_per_s"], 0),
        "bytes from peers": _percent(status["peer_byte_share"]),
        "learner busy": _percent(status["learner_utilisation"]),
    }
    cells = [Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in figures.items()]
    return Columns(cells, padding=(0, 3))


def _rewards(status: Status) -> RenderableType:
    history = [float(reward) for _step, reward in status["reward_history"]]
    return Text("reward     ", style="dim").append(sparkline(history), style="green")


def _staleness(status: Status) -> RenderableType:
    counts = {int(age): int(count) for age, count in status["staleness_histogram"].items()}
    total = sum(counts.values())
    text = Text("staleness  ", style="dim")
    for age in range(status["staleness"]["age_max"] + 1):
        share = counts.get(age, 0) / total if total else 0.0
        text.append(f"{age} ", style="dim").append(sparkline([share]), style="green").append(f"{share:4.0%}  ")
    needed = status["staleness_needed"]
    text.append(f"  S = {status['staleness_limit']}", style="dim")
    if needed is not None:
        text.append(f", needed {needed}", style="red" if needed > status["staleness_limit"] else "dim")
    late = _late(status["staleness"])
    return text.append(f"  {late}", style="dim") if late else text


def _late(staleness: Mapping[str, Any]) -> str:
    """Return the effects of the policies for late rollouts and publishing; empty if both are the default ones."""
    late, policy = staleness["late"], staleness["late_policy"]
    parts = []
    if policy == "wait":
        parts.append(f"batches wait for late groups: {late['waits']} times, {_number(late['waited_s'], 1)} s")
    if policy == "correct":
        parts.append(f"late ones are corrected up to {staleness['age_max']}: {late['corrected']}")
    if staleness["publish_auto"]:
        parts.append(f"published every {staleness['publish_every_steps']} steps, as broadcasts allow")
    return ", ".join(parts)


def _ages(status: Status) -> RenderableType:
    """Return the components of the age of the newest batch."""
    return Text("age        ", style="dim").append(age_words(status["staleness"]["split"]["last"]), style="bold")


def age_words(split: Mapping[str, Any] | None) -> str:
    """Return the mean age in steps and its components in seconds, in one line; "-" if it is unknown."""
    if split is None or split["age_steps"] is None:
        return "-"
    if split["age_s"] is None:
        return f"{split['age_steps']:.1f} steps"
    parts = " ".join(f"{part} {split[f'{part}_s']:.1f}" for part in _AGE_PARTS)
    return f"{split['age_steps']:.1f} steps, {split['age_s']:.1f} s: {parts} s"


def _peers(peers: Sequence[Mapping[str, Any]], left_out: int) -> RenderableType:
    hidden = any(peer["reachability"] != "dialable" for peer in peers)  # else the column says nothing
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    columns = ("peer", "state", "version", "lag", "tokens/s", "open", "accepted", "dropped", "from", "seen")
    for name in (*columns, *(("reached",) if hidden else ())):
        table.add_column(name, no_wrap=name != "from")  # which gives way in a narrow terminal
    for peer in peers:
        cells = (
            str(peer["name"]),
            state_word(peer),
            _number(peer["active_version"]),
            _number(peer["version_lag"]),
            _number(peer["tokens_per_s"], 0),
            str(peer["open_slots"]),
            str(peer["accepted"]),
            str(peer["dropped"]),
            _names(peer["parents"]),
            f"{peer['last_seen_s']:.0f} s",
            *((str(peer["reachability"]),) if hidden else ()),
        )
        # Text, as a peer's name must not be read as markup.
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    return Group(table, Text(f"… and {left_out} more with a smaller version lag", style="dim")) if left_out else table


def _names(names: Sequence[str]) -> str:
    """Return the first names and how many more there are."""
    rest = f" + {len(names) - _NAMES_SHOWN}" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest or "-"


def _ended(episodes: Mapping[str, Any]) -> str:
    """Return what ended episodes with its counts, the most frequent first."""
    ends = sorted(episodes["ended"].items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {end}" for end, count in ends) or "none"


def _rollouts(rollouts: Mapping[str, Any]) -> RenderableType:
    turns = f"  turns {rollouts['turns']}" if rollouts["turns"] else ""
    return Text(
        f"rollouts   issued {rollouts['issued']}  trained {rollouts['trained']}{turns}  open {rollouts['open']}"
        f"  dropped: {_dropped(rollouts)}",
        style="dim",
    )


def _dropped(rollouts: Mapping[str, Any]) -> str:
    """Return the reasons with their counts, most frequent first."""
    reasons = sorted(rollouts["dropped"].items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {reason}" for reason, count in reasons if count) or "none"


def _waiting(status: Status) -> str:
    """Return what the run waits for; empty where that costs nothing: the learner trains, or the wait is brief."""
    since_s = status["waiting_since_s"] or 0.0
    trains = status["learner_phase"] == "training" and str(status["waiting_for"]).startswith("the learner")
    usual_s = max(_STEP_SHOWN_S, _STEP_SHOWN_TIMES * (status["t_train_s"] or 0.0))
    passes = status["step"] > 0 and since_s < _WAIT_SHOWN_S
    if not status["waiting_for"] or passes or (trains and since_s < usual_s):
        return ""
    following = f"; next: {status['next']}" if status["next"] else ""
    return f"waiting for {status['waiting_for']}, {_duration(since_s)} so far{following}"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
