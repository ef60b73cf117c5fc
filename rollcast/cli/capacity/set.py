"""`rollcast capacity set`: set or show S, kappa and the budget of a running run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollcast.cli.actions import show_preview
from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.options import THIS_RUN, Json, Preview, RunOptions
from rollcast.runtime.errors import ConfigError

_NAMES = {
    "staleness_limit": "S",
    "publish_every_steps": "kappa",
    "usd_per_hour_max": "$/h at most",
    "usd_total_max": "$ total at most",
}


def change(
    *,
    staleness_limit: int | None = None,
    publish_every_steps: str = "",
    usd_per_hour_max: str = "",
    usd_total_max: str = "",
    preview: Preview = False,
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Set S, kappa and the budget of a running run. Without options, show them.

    Parameters
    ----------
    staleness_limit
        S in learner steps, at most the value that the run was started with.
    publish_every_steps
        kappa: learner steps between two versions, at most S + 1; auto publishes as often as broadcasts allow.
    usd_per_hour_max
        Limit in US dollars per hour for peers and their traffic; none for no limit.
    usd_total_max
        Limit in US dollars for all rented workers of the run; none for no limit.
    preview
        Only predict the consequences; change nothing.
    json_output
        Print one JSON object.
    """
    values: dict[str, Any] = {} if staleness_limit is None else {"staleness_limit": staleness_limit}
    if publish_every_steps:
        values["publish_every_steps"] = "auto" if publish_every_steps == "auto" else _whole(publish_every_steps)
    for name, text in (("usd_per_hour_max", usd_per_hour_max), ("usd_total_max", usd_total_max)):
        if text:
            values[name] = None if text == "none" else _number(text)
    if preview:
        return show_preview(values, run, json_output=json_output)
    target = Target.of(run)
    answer = post_sync(target, "/api/v1/acts/settings", values) if values else fetch_sync(target, "/api/v1/settings")
    print(json.dumps(answer, indent=2) if json_output else "\n".join(lines_of(answer)))
    return 0


def lines_of(settings: Mapping[str, Any]) -> list[str]:
    """Return one line for each setting."""
    lines = []
    for key, words in _NAMES.items():
        one = settings[key]
        value = "no limit" if one["value"] is None else f"{one['value']:g}"
        following = " (auto)" if one.get("auto") else ""
        bounds = "" if one["most"] is None else f"  {one['least']:g} to {one['most']:g} can be set"
        lines.append(f"{words:<18}{value}{following}{bounds}")
    return lines


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"{text!r} is neither a whole number nor auto", fix="use for example 2, or auto")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither a number nor none", fix="use for example 12.5, or none for no limit"
        ) from None
