"""Perform an act on a run or preview it, and print the outcome, for every command that acts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollcast.cli.coordinator_api import Target, post_sync
from rollcast.cli.options import RunOptions
from rollcast.runtime.errors import ConfigError, MalformedMessage

PREVIEW_TIMEOUT_S = 30.0
_PREVIEW = "/api/v1/acts/settings/preview"
_DONE = {"drain": "drained", "ban": "banned", "enable": "enabled"}
_DONE |= {"pin_on": "pinned on", "pin_off": "pinned off", "pin_auto": "no longer pinned"}
_FIGURES = (
    ("utilisation", "learner busy"),
    ("steps_per_hour", "steps per hour"),
    ("workers_on", "workers on"),
    ("usd_per_hour", "$/h"),
    ("t_bcast_s", "T_bcast s"),
    ("staleness_needed", "S needed"),
)


def act_on_peers(
    act: str, names: Sequence[str], reason: str, run: RunOptions, *, preview: bool, json_output: bool
) -> int:
    """Perform an act on peers. The exit status is not 0 if it failed for any of them."""
    if not names:
        raise ConfigError("no worker is given", fix="give names or ids of workers, as `rollcast workers` lists them")
    values = {"act": act, "peers": list(names), "reason": reason}
    if preview:
        return show_preview(values, run, json_output=json_output)
    answer = post_sync(Target.of(run), "/api/v1/acts/peers", values)
    if json_output:
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(outcome(act, names, answer)))
    return MalformedMessage.exit_code if answer["failed"] else 0


def show_preview(values: Mapping[str, Any], run: RunOptions, *, json_output: bool) -> int:
    """Print the predicted consequences of an act or of other settings; change nothing."""
    answer = post_sync(Target.of(run), _PREVIEW, values, timeout_s=PREVIEW_TIMEOUT_S)
    print(json.dumps(answer, indent=2) if json_output else "\n".join(preview_lines(answer)))
    return 0


def outcome(act: str, names: Sequence[str], answer: Mapping[str, Any]) -> list[str]:
    """Return a line for each peer, under the name that the person gave: what was done, or why nothing was."""
    failed = {one["peer"]: one["error"] for one in answer["failed"]}
    return [
        f"{name}: not changed: {failed[name]}" if name in failed else f"{name}: {_DONE.get(act, act)}"
        for name in dict.fromkeys(names)
    ]


def preview_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the preview's sentence, a table of the figures now and then, and the warnings."""
    lines = [answer["sentence"], f"{'':<16}{'now':>10}{'then':>10}"]
    for key, words in _FIGURES:
        now, then = answer["now"][key], answer["then"][key]
        is_free = key == "usd_per_hour" and not now and not then  # no prices are set
        if not is_free and (now is not None or then is not None):
            lines.append(f"{words:<16}{_cell(key, now):>10}{_cell(key, then):>10}")
    return [*lines, *(f"warning: {text}" for text in answer["warnings"])]


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0%}" if key == "utilisation" else f"{value:.4g}"
