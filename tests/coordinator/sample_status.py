"""A status as a run in full swing gives it, for tests of what reads one."""

from __future__ import annotations

import math
from typing import Any


def peer(name: str, **changes: Any) -> dict[str, Any]:
    """One row of the peer table."""
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
        "hardware": "cpu, 2 cores",
        "parents": ["peer-1"],
        "quarantined": False,
        **changes,
    }


def sample_status(**changes: Any) -> dict[str, Any]:
    """A status of 87 steps of 200."""
    rewards = [0.34 + 0.58 * (1 - math.exp(-step / 38)) + 0.035 * math.sin(step * 2.3) for step in range(87)]
    return {
        "run_name": "local",
        "run_id": "local-20260314-101502-5f3a",
        "phase": "training",
        "learner_phase": "training",
        "learner_detail": "step 88",
        "step": 87,
        "steps": 200,
        "newest_version": 87,
        "staleness_limit": 4,
        "publish_every_steps": 1,
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
        "peers": [
            peer(
                "origin",
                role="origin",
                state="serving",
                reason="keeps the last 8 versions",
                tokens_per_s=0.0,
                chunk_bytes_from_origin=0,
                chunk_bytes_from_peers=0,
                chunk_bytes_sent=210_000_000,
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
        ],
        "rollouts": {
            "issued": 23_040,
            "accepted": 22_510,
            "trained": 22_272,
            "open": 606,
            "dropped": {"lease_expired": 96, "stale": 41, "peer_left": 22, "late_duplicate": 3, "malformed": 0},
        },
        "peer_byte_share": 0.783,
        "learner_utilisation": 0.712,
        "reward_history": [[step + 1, reward] for step, reward in enumerate(rewards)],
        "elapsed_s": 131.0,
        **changes,
    }
