"""`rollcast workers`: list, drain, ban, enable and pin the workers of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from cyclopts import App, Parameter

from rollcast.cli.actions import act_on_peers
from rollcast.cli.coordinator_api import Target, fetch_sync
from rollcast.cli.options import THIS_RUN, Json, Preview, RunOptions

app = App(name="workers", help="List, drain, ban, enable and pin the workers of a run.")

All = Annotated[bool, Parameter(name="--all", negative=())]
_GONE = ("left", "lost")
#: Columns of the list: key, heading, whether it is aligned to the right.
_SHOWN = (
    ("name", "name", False),
    ("state", "state", False),
    ("region", "region", False),
    ("reachability", "reached", False),
    ("version_lag", "behind", True),
    ("tokens_per_s", "tokens/s", True),
    ("accepted", "accepted", True),
    ("last_seen_s", "seen", True),
    ("usd_per_hour", "$/h", True),
    ("reason", "reason", False),
)
#: Columns that are left out where no worker has a value: no regions are configured, no prices are set.
_SPARSE = ("region", "reachability", "usd_per_hour")


@app.default
@app.command(name="list")
def show(*, all_of_them: All = False, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """List the peers of a run that are connected, drained or banned.

    Parameters
    ----------
    all_of_them
        Also list peers that left or were lost recently.
    json_output
        Print one JSON object with every column.
    """
    answer = fetch_sync(Target.of(run), "/api/v1/workers")
    workers = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    found = [
        one for one in workers if one["role"] == "peer" and (all_of_them or one["banned"] or one["state"] not in _GONE)
    ]
    if json_output:
        print(json.dumps({"workers": found}, indent=2))
        return 0
    ended = "" if found else str(fetch_sync(Target.of(run), "/api/v1/overview")["ended"])
    print("\n".join(lines_of(found, ended)))
    return 0


@app.command
def drain(
    *names: str, reason: str = "", preview: Preview = False, run: RunOptions = THIS_RUN, json_output: Json = False
) -> int:
    """Drain peers: they finish their work and relay nothing, and stay connected until you enable them.

    Parameters
    ----------
    names
        Names or ids of the peers, as `rollcast workers` lists them.
    reason
        The reason that the owners are shown and the audit log keeps.
    preview
        Only predict the consequences; change nothing.
    json_output
        Print one JSON object.
    """
    return act_on_peers("drain", names, reason, run, preview=preview, json_output=json_output)


@app.command
def ban(
    *names: str, reason: str = "", preview: Preview = False, run: RunOptions = THIS_RUN, json_output: Json = False
) -> int:
    """Ban peers: their work is given to other peers, and they cannot rejoin until you enable them.

    Parameters
    ----------
    names
        Names or ids of the peers, as `rollcast workers` lists them.
    reason
        The reason that the owners are shown and the audit log keeps.
    preview
        Only predict the consequences; change nothing.
    json_output
        Print one JSON object.
    """
    return act_on_peers("ban", names, reason, run, preview=preview, json_output=json_output)


@app.command
def enable(
    *names: str, reason: str = "", preview: Preview = False, run: RunOptions = THIS_RUN, json_output: Json = False
) -> int:
    """Enable peers again after a drain, a ban or a quarantine.

    Parameters
    ----------
    names
        Names or ids of the peers, as `rollcast workers` lists them.
    reason
        The reason for the audit log.
    preview
        Only predict the consequences; change nothing.
    json_output
        Print one JSON object.
    """
    return act_on_peers("enable", names, reason, run, preview=preview, json_output=json_output)


@app.command
def pin(
    to: Literal["on", "off", "auto"],
    /,
    *names: str,
    reason: str = "",
    preview: Preview = False,
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Pin peers on or off, whatever they cost. With auto the capacity model decides again.

    Parameters
    ----------
    to
        State to pin the peers to: on, off or auto.
    names
        Names or ids of the peers, as `rollcast workers` lists them.
    reason
        The reason for the audit log.
    preview
        Only predict the consequences; change nothing.
    json_output
        Print one JSON object.
    """
    return act_on_peers(f"pin_{to}", names, reason, run, preview=preview, json_output=json_output)


@app.command
def reputation(name: str = "", /, *, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Show what audits found about a peer and its invite; without a name, about all whose reputation is not good.

    Parameters
    ----------
    name
        Name or id of the peer, as `rollcast workers` lists it.
    json_output
        Print one JSON object.
    """
    answer = fetch_sync(Target.of(run), f"/api/v1/reputations?{urlencode({'peer': name})}")
    print(json.dumps(answer, indent=2) if json_output else "\n".join(card_lines(answer)))
    return 0


def card_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return each card of peers and invites in a few lines."""
    lines: list[str] = []
    for card in [*answer["peers"], *answer["invites"]]:
        worst = f", the worst by {card['worst_nats']:.3g} nats" if card["off"] else ""
        because = card["because"] and f", {card['because']}"
        bound = f" (bound: {card['floor_nats']:.3g} nats with {card['sampler']})" if card["tokens"] else ""
        lines += [
            f"{card['kind']} {card['name'] or card['id']}: {card['state']}{because}",
            f"  audited           {card['tokens']:,} tokens in {card['rollouts']:,} rollouts",
            f"  beyond the bound  {card['off']:,} tokens in {card['left_out']:,} rollouts{worst}{bound}",
            f"  trained on        {card['trained']:,} of these rollouts",
            f"  coordinator       {card['act']}",
            *([f"  to undo           {card['undo']}"] if card["undo"] else []),
        ]
    return lines or ["Nothing is wrong with any peer, and no invite was judged yet."]


def lines_of(workers: list[dict[str, Any]], ended: str = "") -> list[str]:
    """Return a heading and one line for each worker; ``ended``: why the run has ended, empty while it goes on."""
    if not workers and ended:
        return [
            f"The run has ended ({ended}), and its workers have left. `rollcast workers --all` lists the last ones."
        ]
    if not workers:
        return ["No workers are connected. Create an invite for a donor with `rollcast invite`."]
    shown = [one for one in _SHOWN if one[0] not in _SPARSE or any(worker.get(one[0]) for worker in workers)]
    rows = [[heading for _, heading, _ in shown], *([_cell(one, key) for key, _, _ in shown] for one in workers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_placed, row, widths, shown)).rstrip() for row in rows]


def state_word(member: Mapping[str, Any]) -> str:
    """Return a member's state as every screen names it: what the coordinator decided, else what the member reports.

    The origin has no other work than to serve, and a worker that waits for work is ready.
    """
    decided = next((name for name in ("banned", "quarantined", "drained", "standby") if member.get(name)), "")
    if decided or member["state"] != "idle":
        return decided or str(member["state"])
    return "serving" if member["role"] == "origin" else "ready"


def _cell(worker: Mapping[str, Any], key: str) -> str:
    value = state_word(worker) if key == "state" else worker.get(key)
    if value is None or value == "":
        return "-"
    if key == "last_seen_s":
        return f"{value:.0f} s"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _placed(cell: str, width: int, column: tuple[str, str, bool]) -> str:
    return cell.rjust(width) if column[2] else cell.ljust(width)
