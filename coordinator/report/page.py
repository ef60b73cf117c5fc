"""Render a run as one HTML file without scripts, server or external resources."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from coordinator.report.curves import Curve, bars, curves, number
from coordinator.report.run_data import Facts
from coordinator.report.summary import smooth
from rollcast.runtime.version import software_version

NOTHING = "\N{EN DASH}"
_STYLE = Path(__file__).with_name("report.css")


def render(facts: Facts, made_unix_s: float) -> str:
    """Return the file's text. Everything that comes from the run is escaped."""
    summary = facts.summary
    title = f"{summary.get('run_name', 'run')}: report"
    sections = (_head(facts, made_unix_s), _tiles(facts), _training(facts), _staleness(facts), _fleet(facts))
    body = "".join((*sections, _time(facts), _peers(facts), _events(facts), _configuration(facts)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE.read_text()}</style></head><body><main>{body}</main></body></html>\n"
    )


# ---------------------------------------------------------------- sections


def _head(facts: Facts, made_unix_s: float) -> str:
    summary = facts.summary
    ended = str(summary.get("ended_because") or summary.get("phase") or "")
    state = f"ended: {ended}" if facts.is_over else "still running, or stopped without a summary"
    lines = [
        f"run {summary.get('run_id', '')}".strip(),
        state,
        f"written {_moment(made_unix_s)} by rollcast {software_version()}",
    ]
    said = " · ".join(escape(line) for line in lines)
    return f'<header><h1>{escape(str(summary.get("run_name", "run")))}</h1><p class="muted">{said}</p></header>'


def _tiles(facts: Facts) -> str:
    summary, rollouts = facts.summary, facts.summary.get("rollouts") or {}
    spending = summary.get("spending") or {}
    tiles = (
        ("Steps", _of(summary.get("step"), summary.get("steps")), "learner steps"),
        ("Reward", _arrow(summary.get("reward_before"), summary.get("reward_after")), "held out, before → after RL"),
        (
            "Oldest trained",
            _known(summary.get("staleness_max_trained")),
            f"S = {_known(summary.get('staleness_limit'))} at the end",
        ),
        ("Learner busy", _share(summary.get("learner_utilisation")), "of step time"),
        (
            "T_bcast",
            _seconds((summary.get("t_bcast_s") or {}).get("p50")),
            "p50; p95 " + _seconds((summary.get("t_bcast_s") or {}).get("p95")),
        ),
        ("Rollouts", _known(rollouts.get("trained")), f"trained of {_known(rollouts.get('issued'))} issued"),
        ("From peers", _share(summary.get("peer_byte_share")), "of chunk bytes"),
        ("Wall time", _seconds(summary.get("wall_s")), "of the coordinator"),
        ("Spent", _usd(spending.get("spent_usd")), _usd(spending.get("usd_per_accepted_rollout"), 6) + " a rollout"),
    )
    made = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>'
        for name, value, note in tiles
        if value != NOTHING
    )
    return f'<dl class="tiles">{made}</dl>'


def _training(facts: Facts) -> str:
    rewards = _column(facts, "reward")
    known = [reward for reward in rewards if reward is not None]
    steps = [float(line["step"]) for line, reward in zip(facts.steps, rewards, strict=True) if reward is not None]
    evaluations = sorted(
        {key for line in facts.steps for key in line if key.startswith("eval_") and key.endswith("pass_at_1")}
    )
    charts = (
        curves(
            "Reward",
            [
                _curve(facts, "batch", "reward", "faint"),
                Curve("smoothed", steps, smooth(known)),
                *(
                    _curve(facts, f"{key[5:-10].replace('_', ' ')}, pass@1", key, f"series-{index % 4 + 2}")
                    for index, key in enumerate(evaluations)
                ),
            ],
        ),
        curves("Loss", [_curve(facts, "loss", "loss")]),
        curves("KL(learner, behaviour), nats per token", [_curve(facts, "k3 estimate", "kl_k3")], least=0.0),
        curves("Entropy, nats per token", [_curve(facts, "entropy", "entropy")], least=0.0),
        curves("Gradient norm before clipping", [_curve(facts, "gradient norm", "grad_norm")], least=0.0),
        curves("Learning rate", [_curve(facts, "learning rate", "learning_rate")], least=0.0),
        curves("Importance ratio", [_curve(facts, "mean", "ratio_mean")]),
        curves("Clipped tokens, share", [_curve(facts, "clipped", "clip_fraction", "worst")], least=0.0),
        curves(
            "Mismatch of engines, nats per token",
            [_curve(facts, "fleet", "mismatch_kl_k3"), _curve(facts, "worst peer", "kl_k3_worst", "worst")],
            least=0.0,
        ),
    )
    return _section("Training", charts)


def _staleness(facts: Facts) -> str:
    last: Mapping[str, Any] = facts.steps[-1] if facts.steps else {}
    histogram = {str(age): float(count) for age, count in (last.get("staleness_histogram") or {}).items()}
    limit = facts.summary.get("staleness_limit")
    if histogram:
        oldest = max([int(age) for age in histogram] + ([int(limit)] if limit is not None else []))
        histogram = {str(age): histogram.get(str(age), 0.0) for age in range(oldest + 1)}
    split = (facts.summary.get("staleness") or {}).get("split") or last.get("age_split") or {}
    parts = {
        name.removesuffix("_s"): float(split.get(name) or 0.0)
        for name in ("train_s", "broadcast_s", "queue_s", "generate_s", "return_s")
    }
    charts = (
        bars("Rollouts trained by age, in learner steps", histogram, limit=str(limit), limit_name=f"S = {limit}"),
        bars("Components of that age", parts),
        curves(
            "Where a step's time goes, seconds",
            [
                _curve(facts, "training", "train_s", "series-1"),
                _curve(facts, "waiting for the batch", "wait_s", "worst"),
                _curve(facts, "publishing", "publish_s", "series-2"),
            ],
            least=0.0,
        ),
        curves("T_bcast, seconds", [_curve(facts, "newest version that all peers have", "t_bcast_last_s")], least=0.0),
    )
    return _section("Staleness", charts)


def _fleet(facts: Facts) -> str:
    rollouts = facts.summary.get("rollouts") or {}
    dropped = {name.replace("_", " "): float(count) for name, count in (rollouts.get("dropped") or {}).items() if count}
    charts = (
        curves("Tokens per second, all peers", [_curve(facts, "tokens/s", "tokens_per_s")], least=0.0),
        curves("Peers present", [_curve(facts, "peers", "peers")], least=0.0),
        bars("Dropped rollouts by reason", dropped),
    )
    return _section("Fleet", charts)


def _time(facts: Facts) -> str:
    if facts.account is None:
        return ""
    names = {one.peer_id: one.name for one in facts.peers}
    rows = [
        (
            one.cause,
            f"{one.seconds:,.1f} s",
            f"{one.share:.1%}",
            ", ".join(f"{names.get(peer) or peer} {seconds:.1f} s" for peer, seconds in list(one.whose.items())[:3]),
        )
        for one in facts.account.shares
    ]
    rows.append(("unaccounted", "", f"{facts.account.unaccounted:.1%}", ""))
    table = _table(("cause", "seconds", "share", "longest for"), rows, numbers=(1, 2))
    return f"<section><h2>Where the learner's {facts.account.wall_s:,.0f} s went</h2>{table}</section>"


def _peers(facts: Facts) -> str:
    rows = [
        (
            one.name or NOTHING,
            f"…{one.peer_id[-10:]}",
            f"{one.trained:,}",
            f"{one.dropped:,}",
            ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in one.reasons.items()),
        )
        for one in facts.peers
    ]
    table = _table(("peer", "identity", "trained", "dropped", "why"), rows, numbers=(2, 3))
    more = f"<p class=muted>and {facts.peers_left_out:,} more peers</p>" if facts.peers_left_out else ""
    note = '<p class="muted">Counts only rollouts that are not compacted in the ledger.</p>'
    return f"<section><h2>Peers</h2>{note}{table}{more}</section>" if rows else ""


def _events(facts: Facts) -> str:
    names = {one.peer_id: one.name for one in facts.peers}
    rows = [
        (_moment(one.at_unix_s), one.kind.replace("_", " "), names.get(one.subject) or one.subject, one.detail)
        for one in facts.events
    ]
    table = _table(("when (UTC)", "what", "about", "detail"), rows)
    return f"<section><h2>The last {len(rows)} events</h2>{table}</section>" if rows else ""


def _configuration(facts: Facts) -> str:
    summary = json.dumps(dict(facts.summary), indent=2)
    blocks = (("Summary", summary), ("Configuration of the coordinator", facts.configuration))
    made = "".join(f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>" for name, text in blocks)
    return f"<section><h2>Details</h2>{made}</section>"


# ---------------------------------------------------------------- parts


def _section(title: str, charts: Sequence[str]) -> str:
    drawn = "".join(charts)
    return f'<section><h2>{escape(title)}</h2><div class="charts">{drawn}</div></section>' if drawn else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="num"' if index in numbers else "" for index in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", headers)}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _column(facts: Facts, key: str) -> list[float | None]:
    values = [line.get(key) for line in facts.steps]
    return [float(value) if isinstance(value, int | float) else None for value in values]


def _curve(facts: Facts, name: str, key: str, kind: str = "series-1") -> Curve:
    return Curve(name, [float(line["step"]) for line in facts.steps], _column(facts, key), kind)


def _known(value: Any, form: Callable[[float], str] = number) -> str:
    return form(value) if isinstance(value, int | float) else NOTHING


def _of(part: Any, whole: Any) -> str:
    return NOTHING if part is None else _known(part) if whole is None else f"{_known(part)} of {_known(whole)}"


def _arrow(before: Any, after: Any) -> str:
    return (
        NOTHING if before is None and after is None else f"{_known(before, _two_digits)} → {_known(after, _two_digits)}"
    )


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _share(value: Any) -> str:
    return _known(value, lambda share: f"{share:.0%}")


def _seconds(value: Any) -> str:
    return _known(value, lambda seconds: f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:,.0f} min")


def _usd(value: Any, digits: int = 2) -> str:
    return _known(value, lambda usd: f"{usd:,.{digits}f} $")


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
