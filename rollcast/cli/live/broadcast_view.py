"""Draw the status of a broadcast for a terminal: `rollcast broadcast status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollcast.cli.live.workers import state_word
from rollcast.wire.limits import SILENT_S

Broadcast = Mapping[str, Any]
_LEVELS = "▁▂▃▄▅▆▇"  # of a range of chunks that is held in part
_NONE, _FULL = "·", "█"
_COLUMNS = ("peer", "state", "held", "chunks", "last s", "p95 s", "up MB/s", "down", "from", "was last")
_NARROW_COLUMNS = ("peer", "state", "held", "chunks", "last s", "up MB/s")
_HEAT_COLUMN = _COLUMNS.index("chunks")
_HOPS_SHOWN = 5
_WINDOW_FULL_SHOWN = 0.1  # share of a hop's sending time
_ROWS_WITH_HOPS = 30  # lines of a terminal; a smaller one has room for the peers only
_AROUND_CHUNKS = 4 + len("link ends") + 2  # the frame, the longest name of a row, and the space after it
_WIDE, _NARROW = 100, 76  # widths of a terminal that fit all columns of the peers, and most of them


def line(broadcast: Broadcast) -> str:
    """Return the broadcast's status in one line."""
    holding, t_bcast = broadcast["peers_holding"], broadcast["t_bcast_s"]
    waiting = f"  waiting for {broadcast['waiting_for']}" if broadcast["waiting_for"] else ""
    version = "-" if broadcast["version"] is None else broadcast["version"]
    return (
        f"version {version}: {_when(broadcast)}, {holding['have']} of {holding['total']} peers hold it"
        f"  T_bcast last {_seconds(t_bcast['last'])} p95 {_seconds(t_bcast['p95'])}{waiting}"
    )


def render(broadcast: Broadcast, *, width: int, rows: int | None = None, notice: str = "") -> RenderableType:
    """Return the whole screen.

    Args:
        width: of the terminal in characters.
        rows: lines of the terminal, to which lists are cut; None shows everything.
        notice: text shown instead of what the broadcast is waiting for.
    """
    waiting = Text(notice, style="red") if notice else _waiting(broadcast)
    is_tall = rows is None or rows >= _ROWS_WITH_HOPS
    head = Group(_progress(broadcast, width), waiting, _figures(broadcast, width, with_ways=is_tall), Text())
    shown, peers_max = broadcast["hops"], None
    if rows is not None:
        shown = shown[: _HOPS_SHOWN if is_tall else 0]
    hops = Group(Text(), _hops(broadcast, shown)) if shown else Group()
    if rows is not None:
        around = 5  # the frame, the table's head, the count of those left out, and the cursor's line
        peers_max = max(3, rows - around - _height(head, width) - _height(hops, width))
    title = Text(f"broadcast · {broadcast['run_name']}")
    body = Group(head, _peers(broadcast, width, peers_max), hops)
    return Panel(body, title=title, border_style="cyan", width=width)


def _height(part: RenderableType, width: int) -> int:
    """Return the number of lines that an element takes inside the frame."""
    console = Console(width=width - 4, file=StringIO())
    return len(console.render_lines(part, pad=False)) if width > 4 else 0


def heat_line(heat_map: str, share_held: float, width: int) -> str:
    """Return a heat map as ``width`` block characters: full only if every chunk is held, a dot if none is.

    Args:
        heat_map: two hex digits a cell, 00 to ff; empty if only the share is known.
        share_held: share of all chunks that is held, 0 to 1.
    """
    cells = bytes.fromhex(heat_map) or bytes([255 if share_held >= 1.0 else min(254, round(255 * share_held))])
    blocks = []
    for column in range(width):
        first = column * len(cells) // width
        run = cells[first : max(first + 1, (column + 1) * len(cells) // width)]
        blocks.append(_block(sum(run) / len(run)))
    return "".join(blocks)


def _block(level: float) -> str:
    if level in (0.0, 255.0):
        return _FULL if level else _NONE
    return _LEVELS[min(len(_LEVELS) - 1, int(level / 255.0 * len(_LEVELS)))]


# ---------------------------------------------------------------- head


def _progress(broadcast: Broadcast, width: int) -> RenderableType:
    holding = broadcast["peers_holding"]
    grid = Table.grid(padding=(0, 2))
    version = "no version yet" if broadcast["version"] is None else f"version {broadcast['version']}"
    grid.add_row(
        Text(version, style="bold"),
        ProgressBar(total=max(1, holding["total"]), completed=holding["have"], width=max(4, width - 64)),
        Text(f"{holding['have']} of {holding['total']} peers hold it"),
        Text(_when(broadcast), style="dim"),
    )
    return grid


def _when(broadcast: Broadcast) -> str:
    if broadcast["version"] is None:
        return "nothing is announced"
    if broadcast["started_s_ago"] is None:
        return "announced before this coordinator started"
    since = _seconds(broadcast["started_s_ago"])
    return f"spreading for {since}" if broadcast["running"] else f"announced {since} ago"


def _waiting(broadcast: Broadcast) -> Text:
    if not broadcast["waiting_for"]:
        return Text(f"complete; next: {broadcast['next']}", style="green")
    return Text(f"waiting for {broadcast['waiting_for']}; next: {broadcast['next']}", style="yellow")


def _figures(broadcast: Broadcast, width: int, *, with_ways: bool) -> RenderableType:
    t_bcast, totals, plan = broadcast["t_bcast_s"], broadcast["totals"], broadcast["plan"]
    received = totals["bytes_from_origin"] + totals["bytes_from_peers"]
    bytes_text = f"{_size(received)} to peers, {_percent(totals['origin_share'])} of it from the origin"
    replans = f", {plan['replans']} since the announcement" if plan["replans"] else ""
    share = 1.0 if broadcast["peers_holding"]["have"] == broadcast["peers_holding"]["total"] > 0 else 0.0
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    rows = {
        "chunks": heat_line(broadcast["heat_map"], share, max(8, width - _AROUND_CHUNKS)),
        "T_bcast": "   ".join(f"{name} {_seconds(t_bcast[name])}" for name in ("last", "p50", "p95")),
        "sent as": _encoding(broadcast),
        "bytes": bytes_text,
        "saved": f"{_size(totals['bytes_saved_by_deltas'])} by deltas",
        "repairs": f"hedged {totals['chunks_hedged']}   duplicate {totals['chunks_duplicate']}   rejected "
        f"{totals['chunks_rejected']}   re-parentings {totals['reparentings']}",
        "plan": f"{plan['mode']} of {plan['stripes']} stripes; {plan['made']} made{replans}",
    }
    if with_ways:
        rows["reached"] = _counts(broadcast["reach"]["members"])
        rows["link ends"] = _counts(broadcast["reach"]["link_ends"])
    for name, text in rows.items():
        grid.add_row(name, Text(text, style="cyan" if name == "chunks" else ""))
    return grid


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _encoding(broadcast: Broadcast) -> str:
    encoding = broadcast["encoding"]
    if encoding is None:
        return "-"
    base = "" if encoding["base_version"] is None else f" on version {encoding['base_version']}"
    received = broadcast["bytes_per_peer"]
    each = "" if received is None else f"; a peer received {_size(received)}"
    return f"{encoding['kind']}{base}, {_size(encoding['size_bytes'])}{each}"


# ---------------------------------------------------------------- tables


def _peers(broadcast: Broadcast, width: int, rows_max: int | None) -> RenderableType:
    peers: Sequence[Mapping[str, Any]] = broadcast["peers"]
    fits = rows_max is None or len(peers) <= rows_max
    shown = sorted(peers, key=_by_name) if fits else peers[: rows_max or 0]
    wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    names = _COLUMNS if wide else _COLUMNS[:-1] if width >= _NARROW else _NARROW_COLUMNS
    lists = [_peer_row(peer, names) for peer in shown]
    widths = [
        min(24 if wide else 12, max([len(name), *(len(row[column].plain) for row in lists)]))
        for column, name in enumerate(names)
    ]
    cells = max(8, width - 4 - sum(widths) + widths[_HEAT_COLUMN] - len(names))
    for column, name in enumerate(names):
        side: Literal["left", "right"] = "left" if column in (0, 1, _HEAT_COLUMN) else "right"
        table.add_column(name, justify=side, no_wrap=True, max_width=max(widths[column], cells))
    for peer, row in zip(shown, lists, strict=True):
        row[_HEAT_COLUMN] = _peer_heat(peer, cells)
        row[0].truncate(widths[0], overflow="ellipsis")
        row[1].truncate(widths[1], overflow="ellipsis")
        table.add_row(*row)
    left_out = len(peers) - len(shown) + broadcast["peers_left_out"]
    return (
        Group(table, Text(f"… and {left_out} more that hold more chunks than these", style="dim"))
        if left_out
        else table
    )


def _by_name(peer: Mapping[str, Any]) -> tuple[bool, int, str]:
    """Sort the origin first, then peer-2 before peer-10."""
    return peer["role"] != "origin", len(peer["name"]), peer["name"]


def _peer_heat(peer: Mapping[str, Any], cells: int) -> Text:
    if peer["role"] == "origin":
        return Text()
    style = "green" if peer["share_held"] >= 1.0 else "cyan"
    return Text(heat_line(peer["heat_map"], peer["share_held"], cells), style=style)


def _peer_row(peer: Mapping[str, Any], names: Sequence[str]) -> list[Text]:
    """Return a row without its heat map, which is rendered last in the width that the other cells leave."""
    silent, is_origin = peer["last_seen_s"] > SILENT_S, peer["role"] == "origin"
    complete = is_origin or peer["share_held"] >= 1.0
    style = "red" if silent else "" if complete else "yellow"
    state = f"silent {peer['last_seen_s']:.0f} s" if silent else state_word(peer)
    texts = {
        "peer": peer["name"],
        "state": state,
        "held": "" if is_origin else f"{int(100 * peer['share_held'])}%",
        "chunks": "",
        "last s": _short(peer["t_last_s"]),
        "p95 s": _short(peer["t_p95_s"]),
        "up MB/s": _megabytes(peer["uplink_bytes_per_s"]),
        "down": _megabytes(peer["downlink_bytes_per_s"]),
        "from": "" if is_origin else str(peer["parents"]),
        "was last": "" if is_origin else str(peer["times_last"]),
    }
    return [Text(texts[name], style=style if name in _COLUMNS[:_HEAT_COLUMN] else "") for name in names]


def _hops(broadcast: Broadcast, hops: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("slowest hops", no_wrap=True, max_width=30, overflow="ellipsis")
    for name in ("MB/s", "rtt ms", "sent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("over", no_wrap=True)
    for hop in hops:
        rtt = "-" if hop["rtt_s"] is None else f"{1000 * hop['rtt_s']:.0f}"
        lost, full = hop["lost_share"] or 0.0, hop["window_limited_share"] or 0.0
        troubles = (f"{lost:.1%} lost" if lost else "", f"window full {full:.0%}" if full >= _WINDOW_FULL_SHOWN else "")
        over = ", ".join(part for part in (hop["transport"], hop["congestion_control"], *troubles) if part)
        texts = (
            f"{hop['from_name']} → {hop['to_name']}",
            _megabytes(hop["bytes_per_s"]),
            rtt,
            _size(hop["bytes"]),
            over,
        )
        table.add_row(*(Text(text) for text in texts))
    rates = broadcast["hop_rates"]
    spread = f"p50 {_megabytes(rates['p50'])}, fastest {_megabytes(rates['fastest'])} MB/s"
    rest = f"{rates['measured']} hops measured: {spread}"
    return Group(table, Text(rest, style="dim")) if rates["measured"] else table


# ---------------------------------------------------------------- words


def _short(value: float | None) -> str:
    """Return a number in at most five characters."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _seconds(value: float | None) -> str:
    if value is None or value < 120:
        return "-" if value is None else f"{1000 * value:.0f} ms" if value < 1 else f"{_short(value)} s"
    minutes = int(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _size(value: float) -> str:
    units = ["B", "KB", "MB", "GB", "TB"]
    unit = 0
    while value >= 1000 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {units[unit]}" if unit and value < 100 else f"{value:.0f} {units[unit]}"


def _megabytes(rate: float | None) -> str:
    return "-" if rate is None else _short(rate / 1e6)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
