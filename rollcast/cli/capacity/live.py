"""`rollcast capacity status`, `price` and `set`: show a running run's capacity model, and set its prices and limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from rollcast.cli.actions import show_preview
from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.options import THIS_RUN, Json, Preview, RunOptions
from rollcast.runtime.errors import ConfigError

_OFF = ("drained", "quarantined")
_MODES = {"off": "the planner is off", "advise": "the planner only advises", "act": "the planner switches workers"}
_SETTINGS = {
    "staleness_limit": "S",
    "publish_every_steps": "kappa",
    "usd_per_hour_max": "$/h at most",
    "usd_total_max": "$ total at most",
}
_BUDGETS = ("usd_per_hour_max", "usd_total_max")


def status(*, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Show which peers of a run are on or off, why, and what they cost.

    Parameters
    ----------
    json_output
        Print one JSON object.
    """
    answer = fetch_sync(Target.of(run), "/api/v1/status")
    peers = [one for one in answer["peers"] if one["role"] == "peer" and one["state"] not in ("left", "lost")]
    if json_output:
        print(json.dumps({"activation": answer["activation"], "peers": peers}, indent=2))
    else:
        print("\n".join(lines_of(answer["activation"], peers)))
    return 0


def price(
    usd_per_hour: float,
    *,
    peer_id: str = "*",
    name: str = "*",
    hardware: str = "*",
    region: str = "*",
    egress_usd_per_gb: float = 0.0,
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Set the price of all peers of a run that match every pattern given (* and ? as in file names).

    Parameters
    ----------
    usd_per_hour
        Price in US dollars per hour of one peer while it is on.
    peer_id
        Pattern of the peer's id, the only one of these that a peer cannot choose itself.
    name
        Pattern of the peer's name.
    hardware
        Pattern of the peer's hardware.
    region
        Pattern of the peer's region.
    egress_usd_per_gb
        Price in US dollars per GB that a peer sends.
    json_output
        Print one JSON object.
    """
    values = {
        "peer_id": peer_id,
        "name": name,
        "hardware": hardware,
        "region": region,
        "usd_per_hour": usd_per_hour,
        "egress_usd_per_gb": egress_usd_per_gb,
    }
    answer = post_sync(Target.of(run), "/api/v1/acts/price", values)
    if json_output:
        print(json.dumps(answer))
        return 0
    patterns = {"id": peer_id, "name": name, "hardware": hardware, "region": region}
    given = " and ".join(f"{what} {pattern}" for what, pattern in patterns.items() if pattern != "*")
    print(f"{usd_per_hour:g} $/h for {f'peers with {given}' if given else 'every peer'}, from now on.")
    if not answer["peers_matching"]:
        print(f"None of the {answer['peers']} peers that are connected matches; those that join later may.")
    number = answer["prices"]
    print(f"The run has {number} price{'' if number == 1 else 's'}; `rollcast capacity status` shows what peers cost.")
    return 0


def lines_of(activation: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> list[str]:
    """Return a line about the run, one about its plan, and one for each peer with a tick if it is on."""
    on, standby, usd = activation["on"], activation["standby"], activation["usd_per_hour"]
    has_prices = usd > 0.0 or any(peer["usd_per_hour"] for peer in peers)
    lines = [
        f"{_MODES[activation['mode']]}: {on} on{f' for {usd:.4g} $/h' if has_prices else ''}, {standby} on standby"
        f"{'' if has_prices else '; no prices are set'}"
    ]
    planned = activation["plan"]
    if planned is not None and planned["infeasible"]:
        lines.append(f"plan {planned['number']}: no set of workers is sufficient: {planned['infeasible']}")
    elif planned is not None:
        rate, needed = planned["rate_rollouts_per_second"], planned["rate_needed_rollouts_per_second"]
        lines.append(
            f"plan {planned['number']}: {planned['on']} on for {planned['usd_per_hour']:.4g} $/h,"
            f" at least {planned['lp_bound_usd_per_hour']:.4g} $/h; {rate:.3g} of {needed:.3g} rollouts/s needed;"
            f" T_bcast {planned['t_bcast_s']:.3g} s"
        )
    if activation["failed"]:
        lines.append(f"the last plan failed: {activation['failed']}")
    for peer in peers:
        tick = " " if peer["standby"] or peer.get("state") in _OFF else "\N{CHECK MARK}"
        pinned = f" [pinned {peer['pin']}]" if peer["pin"] else ""
        cost = f" {peer['usd_per_hour']:>8.4g} $/h" if has_prices else ""
        lines.append(f"{tick} {peer['name']:<16}{cost}{pinned}  {peer['reason']}")
    return lines


def change(
    *,
    staleness_limit: Annotated[int | None, Parameter(alias="--staleness")] = None,
    publish_every_steps: Annotated[str, Parameter(alias="--kappa")] = "",
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
        S in learner steps. A larger one takes effect step by step, as the learner keeps older versions from then on.
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
    print(json.dumps(answer, indent=2) if json_output else "\n".join(settings_lines(answer)))
    return 0


def settings_lines(settings: Mapping[str, Any]) -> list[str]:
    """Return one line for each setting."""
    lines = []
    for key, words in _SETTINGS.items():
        one = settings[key]
        value = "no limit" if one["value"] is None else f"{one['value']:g}"
        following = " (auto)" if one.get("auto") else ""
        bounds = "" if one["most"] is None else f"  {one['least']:g} to {one['most']:g} can be set"
        if key in _BUDGETS and one["value"] is not None and settings["planner"] != "act":
            bounds = f'  has no effect: capacity.mode is "{settings["planner"]}"'
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
