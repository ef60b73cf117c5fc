"""Make the status of a busy run, for tests of its readers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from coordinator.core.staleness.age_breakdown import PARTS
from coordinator.core.status.turns import Turns


def peer(name: str, **changes: Any) -> dict[str, Any]:
    """Return one row of the peer table."""
    return {
        "peer_id": f"12D3KooWExampleExampleExampleExampleExampleExampl{name[:1]}{len(name)}q",
        "name": name,
        "role": "peer",
        "state": "generating",
        "reason": "holds leases for 64 rollouts",
        "active_version": 87,
        "version_lag": 0,
        "tokens_per_s": 4120.0,
        "open_slots": 96,
        "accepted": 7421,
        "dropped": 12,
        "last_seen_s": 0.4,
        "chunk_bytes_from_origin": 61_300_000,
        "chunk_bytes_from_peers": 402_000_000,
        "chunk_bytes_sent": 390_000_000,
        "t_bcast_s": 0.121,
        "hardware": "cpu, 2 cores",
        "region": "lab",
        "concurrent_rollouts": 64,
        "cell_workers": None,
        "parents": ["peer-1"],
        "quarantined": False,
        "reachability": "dialable",
        "nat": "open",
        "swap_kind": "delta",
        "swap_paused_s": 0.02,
        "swap_moved_bytes": 29_500_000,
        "swap_read_back": True,
        "engine_devices": 1,
        "engine_versions": 2,
        **changes,
    }


def split_means(rollouts: int, age_steps: float, unknown: int = 0) -> dict[str, Any]:
    """Return the mean components of the ages of a batch, or of all batches."""
    seconds = {"train_s": 0.1, "broadcast_s": 0.4, "queue_s": 0.9, "generate_s": 0.6, "return_s": 0.1}
    return {"rollouts": rollouts, "unknown": unknown, "age_steps": age_steps, "age_s": 2.1, **seconds}


def _peers() -> list[dict[str, Any]]:
    return [
        peer(
            "origin",
            role="origin",
            state="serving",
            reason="keeps the last 8 versions",
            tokens_per_s=0.0,
            chunk_bytes_from_origin=0,
            chunk_bytes_from_peers=0,
            chunk_bytes_sent=210_000_000,
            t_bcast_s=None,
            open_slots=0,
            accepted=0,
            dropped=0,
            hardware="",
            parents=[],
        ),
        peer("peer-1", parents=["origin"], chunk_bytes_from_origin=402_000_000, chunk_bytes_from_peers=0),
        peer(
            "peer-2",
            state="receiving",
            reason="receiving version 88: 31 of 96 chunks",
            version_lag=1,
            active_version=86,
        ),
        peer(
            "peer-3",
            state="lost",
            reason="silent for 5.2 s, its leases were given out again",
            last_seen_s=5.2,
            tokens_per_s=0.0,
            open_slots=0,
            version_lag=5,
            active_version=82,
            dropped=84,
            parents=["peer-2", "peer-1"],
        ),
    ]


def sample_status(**changes: Any) -> dict[str, Any]:
    """Return a status after 87 of 200 steps."""
    peers = changes.get("peers", _peers())
    states = Counter((one["role"], one["state"]) for one in peers)
    rewards = [0.34 + 0.58 * (1 - math.exp(-step / 38)) + 0.035 * math.sin(step * 2.3) for step in range(87)]
    return {
        "run_name": "local",
        "run_id": "local-20260314-101502-5f3a",
        "phase": "training",
        "learner_phase": "training",
        "learner_detail": "step 88",
        "evaluations": {
            "held_out": {"pass_at_1": 0.71, "pass_at_1_low": 0.67, "pass_at_1_high": 0.75, "version": 80.0}
        },
        "mismatch": {
            "kl_k3": 3e-7,
            "ratio_mean": 1.0001,
            "outside_share": 0.0,
            "reported_share": 1.0,
            "peers_alarming": 0,
            "peers": {"peer-1": 4e-7},
            "sampling_lacks_share": 0.002,
            "sampling_peers_alarming": 0,
            "sampling_peers": {"peer-1": 0.004},
            "alarm": "",
        },
        "step": 87,
        "steps": 200,
        "stage": "",
        "newest_version": 87,
        "staleness_limit": 4,
        "publish_every_steps": 1,
        "t_train_s": 0.9,
        "t_gen_p90_s": 4.8,
        "rollouts_per_step": 64,
        "epoch": 0,
        "staleness": {
            "limit": 4,
            "age_max": 4,
            "gate_broken_by": 0,
            "late_policy": "drop",
            "publish_every_steps": 1,
            "publish_auto": False,
            "step_period_s": 1.1,
            "late": {"corrected": 0, "waits": 0, "waits_in_vain": 0, "waited_s": 0.0},
            "split": {
                "last": split_means(256, 2.125),
                "total": split_means(22_000, 1.3, unknown=272),
                "steps": [{"step": 86, **split_means(256, 2.125)}],
                "bounds_s": [0.1, 1.0],
                "parts": {part: {"at_most": [4, 9, 10], "sum_s": 7.5} for part in PARTS},
            },
        },
        "reward_train": rewards[-1],
        "reward_before": 0.34,
        "reward_after": None,
        "exact_before": 0.33,
        "exact_after": None,
        "warm_start_s": 41.0,
        "warm_start_accuracy": 0.94,
        "staleness_histogram": {"0": 3120, "1": 14200, "2": 4100, "3": 640, "4": 212},
        "staleness_max_trained": 4,
        "staleness_needed": 2,
        "t_bcast_s": {"p50": 0.142, "p95": 0.391, "last": 0.137},
        "tokens_per_s": 12_480.0,
        "waiting_for": "3 of 32 groups, 19 rollouts still being generated",
        "waiting_since_s": 0.8,
        "next": "step 88 is trained as soon as they are scored",
        "peers": peers,
        "peers_left_out": 0,
        "peers_by_state": [{"role": role, "state": state, "count": states[role, state]} for role, state in states],
        "rollouts": {
            "issued": 23_040,
            "accepted": 22_510,
            "trained": 22_000,
            "turns": 272,
            "open": 606,
            "dropped": {"lease_expired": 96, "stale": 41, "peer_left": 22, "late_duplicate": 3, "malformed": 0},
        },
        "episodes": {
            "open": 12,
            "turns": 391,
            "ended": {"done": 61, "turns": 9},
            "begun_anew": {"stale": 4},
            "failures": 1,
            "turns_mean": 3.4,
        },
        "scoring": {
            "paused": "",
            "paused_s": 0.0,
            "waiting": 3,
            "failures": {"timeout": 2},
            "last_failure": "timeout: no verdict within 10 s",
            "unscorable_groups": 0,
        },
        "peer_byte_share": 0.783,
        "learner_utilisation": 0.712,
        "learner_mfu": None,
        "learner_memory_peak_share": None,
        "learner_profile": None,
        "updates_skipped": 0,
        "updates_skipped_at": None,
        "reward_history": [[step + 1, reward] for step, reward in enumerate(rewards)],
        "elapsed_s": 131.0,
        **changes,
    }


def broadcast_peer(name: str, share_held: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return one row of the broadcast's peer table; below a share of 1 its heat map shows the first part held."""
    full = int(128 * share_held)
    return {
        "peer_id": f"12D3KooWExampleExampleExampleExampleExampleExampl{name[:1]}{len(name)}q",
        "name": name,
        "role": "peer",
        "state": "generating" if share_held == 1.0 else "receiving",
        "version": 87 if share_held == 1.0 else 86,
        "share_held": share_held,
        "heat_map": "" if share_held in (0.0, 1.0) else (b"\xff" * full + b"\x40" * (128 - full)).hex(),
        "encoding_id": None if share_held == 1.0 else 1,
        "t_last_s": 1.42,
        "t_p50_s": 1.38,
        "t_p95_s": 1.91,
        "times_last": 3,
        "uplink_bytes_per_s": 6.1e6,
        "uplink_measured_s": 12.0,
        "uplink_age_s": 8.0,
        "downlink_bytes_per_s": 11.8e6,
        "parents": 8,
        "last_seen_s": 0.4,
        **changes,
    }


def broadcast_hop(source: str, target: str, **changes: Any) -> dict[str, Any]:
    """Return one hop of the broadcast."""
    return {
        "from_peer_id": source,
        "from_name": source,
        "to_peer_id": target,
        "to_name": target,
        "bytes_per_s": 0.78e6,
        "rtt_s": 0.041,
        "bytes": 212_000_000,
        "transport": "direct",
        "congestion_control": "cubic",
        "lost_share": 0.0,
        "window_limited_share": 0.0,
        **changes,
    }


def sample_broadcast(**changes: Any) -> dict[str, Any]:
    """Return the broadcast of version 87 to eight peers, one of which is behind, as /api/v1/broadcast does."""
    behind = broadcast_peer("peer-5", 0.41, uplink_bytes_per_s=None, t_last_s=6.2, t_p95_s=7.4, times_last=61)
    delta = {"encoding_id": 1, "kind": "delta", "base_version": 86, "size_bytes": 5_300_000, "receiving": 1}
    keyframe = {"encoding_id": 0, "kind": "keyframe", "base_version": None, "size_bytes": 268_000_000, "receiving": 0}
    peers = [broadcast_peer(f"peer-{number}") for number in (1, 2, 3, 4, 6, 7, 8)]
    origin = broadcast_peer(
        "origin", 0.0, role="origin", state="idle", version=None, t_last_s=None, t_p50_s=None, t_p95_s=None, parents=0
    )
    return {
        "run_name": "local",
        "version": 87,
        "running": True,
        "started_s_ago": 3.2,
        "waiting_for": "peer-5, which holds 41% of version 87, about 5 s from the end at its pace so far",
        "next": "T_bcast of version 87 is measured once all hold it",
        "encoding": delta,
        "encodings": [keyframe, delta],
        "bytes_per_peer": 5_310_000.0,
        "peers_holding": {"have": 7, "total": 8},
        "heat_map": (b"\xff" * 52 + b"\xe5" * 76).hex(),
        "t_bcast_s": {"last": 1.91, "p50": 1.87, "p95": 7.31},
        "t_peer_s": {"bounds": [0.5, 1.0, 2.5], "at_most": [0, 12, 600, 661], "sum": 1004.0},
        "plan": {"made": 14, "mode": "mesh", "stripes": 9, "replans": 1},
        "totals": {
            "bytes_from_origin": 620_000_000,
            "bytes_from_peers": 3_100_000_000,
            "origin_share": 1 / 6,
            "bytes_saved_by_deltas": 181_000_000_000,
            "chunks_duplicate": 12,
            "chunks_hedged": 31,
            "chunks_rejected": 0,
            "reparentings": 9,
            "addresses_refused": 2,
        },
        "reach": {
            "members": {"dialable": 5, "hole-punchable": 3, "only outwards": 1},
            "link_ends": {
                "LAN": 4,
                "direct": 52,
                "hole-punched": 6,
                "libp2p": 0,
                "relayed": 2,
                "mirror": 0,
            },
            "punches": {
                "asked": 5,
                "refused": 1,
                "opened": 3,
                "failed": 1,
                "seconds_mean": 0.31,
                "pairs_left_alone": 1,
            },
            "dial_backs": {"dialable": 9, "undialable": 1, "unanswered": 0},
            "records": 9,
        },
        "peers": [origin, behind, *peers],
        "peers_left_out": 0,
        "hop_rates": {
            "measured": 64,
            "slowest": 0.78e6,
            "p50": 0.86e6,
            "fastest": 6.2e6,
            "congestion_control": {"bbr": 3, "cubic": 61},
        },
        "hops": [
            broadcast_hop("peer-5", "peer-2", rtt_s=0.183),
            broadcast_hop("origin", "peer-5", bytes_per_s=0.84e6),
            broadcast_hop("peer-1", "peer-5", bytes_per_s=None, rtt_s=None, congestion_control=""),
        ],
        "hops_left_out": 0,
        **changes,
    }


def sample_broadcast_turns() -> Turns[dict[str, Any]]:
    """Return the same in turns."""
    yield
    return sample_broadcast()
