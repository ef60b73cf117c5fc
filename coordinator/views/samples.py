"""Sample the series of the charts: the mean over the fleet, and its worst member by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.status.peers import accept_share, took_s, version_lag
from coordinator.core.status.status import RunStatus
from coordinator.core.status.turns import Turns
from coordinator.views.overview import usd_per_hour

Name = Literal[
    "tokens_per_s",
    "version_lag",
    "t_bcast_s",
    "accept_share",
    "last_seen_s",
    "upload_bytes_per_s",
    "age_steps",
    "learner_utilisation",
    "usd_per_hour",
    "mismatch_kl",
]
Worst = Literal["most", "least", "none"]

#: Unit of each series, and which member is the worst.
SERIES: Mapping[Name, tuple[str, Worst]] = {
    "tokens_per_s": ("tokens/s", "least"),
    "version_lag": ("steps", "most"),
    "t_bcast_s": ("s", "most"),
    "accept_share": ("share", "least"),
    "last_seen_s": ("s", "most"),
    "upload_bytes_per_s": ("bytes/s", "least"),
    "age_steps": ("steps", "most"),
    "learner_utilisation": ("share", "none"),
    "usd_per_hour": ("US dollars/h", "none"),
    "mismatch_kl": ("nats/token", "most"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One series at one moment; None if nothing was measured. ``who`` is the worst member's name, or empty."""

    mean: float | None = None
    worst: float | None = None
    who: str = ""


def take_sample(
    state: CoreState, status: RunStatus, spending: Mapping[str, Any] | None, *, now: float
) -> Turns[dict[Name, Point]]:
    """Return all series now. Those of members cover workers that are on; ages cover the newest batch."""
    on = [one for one in state.members if one.role == "peer" and not _is_off(one)]
    newest = state.newest_version
    split = state.ages.last
    trained_at_age = None if split is None else split.means()["age_steps"]
    of_members: Mapping[Name, Callable[[Member], float | None]] = {
        "tokens_per_s": _tokens,
        "version_lag": lambda one: _float(version_lag(one, newest)),
        "t_bcast_s": lambda one: took_s(state, one),
        "accept_share": accept_share,
        "last_seen_s": lambda one: now - one.last_seen,
        "upload_bytes_per_s": _uplink,
    }
    found = dict[Name, Point]()
    for name, value_of in of_members.items():
        yield
        found[name] = _over(on, map(value_of, on), SERIES[name][1])
    return found | {
        "age_steps": Point(trained_at_age, _float(state.staleness.max_trained)),
        "learner_utilisation": Point(state.progress.recent_utilisation),
        "usd_per_hour": Point(usd_per_hour(state, status, spending)),
        "mismatch_kl": _mismatch(status),
    }


def _is_off(member: Member) -> bool:
    return not member.reputation.is_on


def _tokens(member: Member) -> float | None:
    """Return a worker's rate; None for one that has not reported or holds no version: it cannot be slow yet."""
    return None if member.facts is None or member.version is None else member.facts.tokens_per_second


def _uplink(member: Member) -> float | None:
    return None if member.facts is None else member.facts.uplink_bytes_per_second or None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _over(members: Iterable[Member], values: Iterable[float | None], worst: Worst) -> Point:
    """Return mean and worst of the members that have a value; among equals the first is the worst."""
    total, count, found, who = 0.0, 0, 0.0, ""
    most = worst == "most"
    for member, value in zip(members, values, strict=True):
        if value is None:
            continue
        total += value
        if not count or (value > found if most else value < found):
            found, who = value, member.name
        count += 1
    return Point(total / count, found, who) if count else Point()


def _mismatch(status: RunStatus) -> Point:
    mismatch = status.mismatch
    if mismatch is None:
        return Point()
    who = max(mismatch.peers, key=lambda name: mismatch.peers[name], default="")
    return Point(mismatch.kl_k3, mismatch.peers.get(who), who)
