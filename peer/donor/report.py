"""Build the report that the owner's screens show: one plain dictionary, the same for command line and page.

name, peer_id, run_id, software, hardware, uptime_s
coordinator, connected              host:port of the session, and whether it is open
coordinators_failing                each address that failed since the last session: address, hop (name lookup,
                                    connection, TLS, certificate, session), reason, fix, failures, seconds_ago
state, reason, until                what the machine does and why: its owner's limits first, then the worker's state
verdict                             what the run found wrong with its rollouts (peer.donor.verdict); or null
version_active, version_newest      version that rollouts are generated with; newest version held (null: none yet)
receiving                           version, chunks held, chunks in all, map of 0 to 255 by run of chunks; or null
tokens_per_second, tokens_generated
swap                                newest exchange of the engine's weights: version, kind (keyframe, delta), paused_s,
                                    moved_bytes, read_back (peer.engines.base.Swap); or null
engine_devices, engine_versions      devices that the engine divides the model among, and versions whose weights they
                                    have room for: 2, or 1 if each replaces the one before; 0: not known
today, total, newest                uploaded rollouts by verdict; the newest receipts
reach                               how others reach it: reachability, address, nat, nat_means, checked, punch_address,
                                    punch_address_ipv6, relays, p2p (peer/reachability/summary.py)
links                               open chunk links: peer_id, transport, path in words, rtt_s, bytes each way,
                                    congestion_control, lost_share and window_limited_share as in LinkMeasurement
chunk_bytes_*, *_bytes_per_second
newer_release                       ours, theirs, how to upgrade: the coordinator runs a later release; or null
limits, used, readings              configured limits; traffic this month; sensor readings (null: no such sensor)
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from peer.config import PeerConfig
from peer.donor.control.saved_state import SavedState
from peer.donor.enforce import LimitsEnforcer
from peer.donor.receipts import Receipts

_NEWEST_SHOWN = 50


_RELEASE = re.compile(r"^rollcast (\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\D|$)")

HOW_TO_UPGRADE = (
    "let it finish its work (`rollcast peer finish`), upgrade the package or the image, start it again; "
    "identity, versions and receipts stay"
)


@dataclass(frozen=True, slots=True)
class NewerRelease:
    """A newer release. Args: ours, theirs: versions such as 0.1.0; how: text that says how to upgrade."""

    ours: str
    theirs: str
    how: str = HOW_TO_UPGRADE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def newer_release(ours: str, theirs: str) -> NewerRelease | None:
    """Return the coordinator's release if it is newer than ours; None: it is not, or its form is unknown.

    Args:
        ours, theirs: release texts such as "rollcast 0.1.0 (commit 1a2b3c4)". Only the numbers are shown to the owner,
            never the coordinator's text.
    """
    mine, other = _RELEASE.match(ours), _RELEASE.match(theirs)
    if mine is None or other is None:
        return None
    numbers, others = tuple(map(int, mine.groups())), tuple(map(int, other.groups()))
    if others <= numbers:
        return None
    return NewerRelease(".".join(map(str, numbers)), ".".join(map(str, others)))


def machine_report(
    process: dict[str, Any],
    enforcer: LimitsEnforcer,
    memory: SavedState,
    receipts: Receipts,
    config: PeerConfig,
    local: datetime,
) -> dict[str, Any]:
    """Return the report at this time of the owner's wall clock; ``process`` is its part from peer.donor.describe."""
    allowed = enforcer.allowed
    own = {"state": process["state"], "reason": process["reason"]}
    if allowed.state != "on":
        own = {"state": allowed.state, "reason": allowed.reason}
    elif allowed.reason:
        own["reason"] = "; ".join(filter(None, (own["reason"], allowed.reason)))
    until = memory.asked.until
    return {
        **process,
        **own,
        "until": None if until is None else until.isoformat(timespec="minutes"),
        "today": receipts.today(local),
        "total": receipts.total(),
        "newest": [asdict(receipt) for receipt in list(receipts.newest)[-_NEWEST_SHOWN:]],
        "limits": {
            **config.limits.model_dump(mode="json"),
            "upload_mbit_s_max": config.link.upload_mbit_s_max,
            "download_mbit_s_max": config.link.download_mbit_s_max,
            "lan_exempt": config.link.lan_exempt,
        },
        "used": {name: value for name, value in asdict(enforcer.used).items() if name != "others"},
        "readings": asdict(enforcer.readings),
    }
