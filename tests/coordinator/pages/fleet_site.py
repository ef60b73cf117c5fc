"""Serve the dashboard over a made-up fleet: views as /api/v1 gives them, and acts that change them."""

from __future__ import annotations

import random
import time
from dataclasses import asdict
from typing import Any

from aiohttp import web

from coordinator.core.members.audit_book import AuditRecord
from coordinator.core.members.reputation_card import card_of_invite, card_of_peer
from tests.coordinator.pages.sample_site import SampleSite
from tests.coordinator.sample_status import sample_broadcast

REGIONS = ("eu-west", "us-east", "ap-south", "lab")
NOW_UNIX_S = 1_780_000_000.0
SECRET = "rollcast1-aaaabbbbccccdddd"


def worker(number: int, **changes: Any) -> dict[str, Any]:
    """Return one row of the table of workers; number 0 is the origin."""
    is_origin = number == 0
    return {
        "peer_id": f"12D3KooW{number:044d}",
        "name": "origin" if is_origin else f"gpu-{number}",
        "public_name": "",
        "role": "origin" if is_origin else "peer",
        "state": "serving" if is_origin else "generating",
        "reason": "keeps the last 8 versions" if is_origin else f"{number % 60} rollouts with version 87",
        "region": REGIONS[number % len(REGIONS)],
        "hardware": "NVIDIA GeForce RTX 4090",
        "software": "0.7.0",
        **_reached(number),
        "active_version": 87,
        "version_lag": 0,
        "tokens_per_s": 0.0 if is_origin else 1000.0 + number,
        "concurrent_rollouts": 64,
        "open_slots": 32,
        "accepted": 990,
        "dropped": 10,
        "accept_share": 0.99,
        "last_seen_s": 0.4,
        "t_bcast_s": 1.2,
        "upload_bytes_per_s": 6.1e6,
        "download_bytes_per_s": 61e6,
        "chunk_bytes_from_origin": 61_300_000,
        "chunk_bytes_from_peers": 402_000_000,
        "chunk_bytes_sent": 390_000_000,
        "usd_per_hour": 0.44,
        "pin": "auto",
        "standby": False,
        "drained": False,
        "banned": False,
        "quarantined": False,
        "joined_s_ago": 4000.0,
        "parents": [] if is_origin else ["origin"],
        **changes,
    }


def _reached(number: int) -> dict[str, str]:
    """Return how others reach a worker; three of eight cannot be dialed."""
    ways = {
        3: ("hole-punched+relayed", "hole-punchable", "port-restricted", "", ""),
        5: ("direct+libp2p+relayed", "only outwards", "symmetric", "", "running"),
        7: (
            "direct+hole-punched",
            "hole-punchable",
            "full-cone",
            "0 of 4 peers that tried could connect to 203.0.113.9:7420: no answer",
            "",
        ),
    }
    plain = ("LAN+direct", "dialable", "open", "4 of 4 peers that tried could connect to 203.0.113.8:7420", "running")
    return dict(
        zip(("transport", "reachability", "nat", "dial_check", "p2p"), ways.get(number % 8, plain), strict=True)
    )


def workers_view(workers: list[dict[str, Any]]) -> dict[str, Any]:
    columns = list(workers[0])
    rows = [[one[column] for column in columns] for one in workers]
    return {"columns": columns, "rows": rows, "at_unix_s": NOW_UNIX_S}


def tree_of(peers: int, *, fan_out: int = 5, stripes: int = 2) -> dict[str, Any]:
    """Return a relay tree in which each stripe is a heap over the peers in another order."""
    source = random.Random(peers)
    ids = [f"p{number}" for number in range(1, peers + 1)]
    nodes = [_node("origin", role="origin"), *(_node(one, region=source.choice(REGIONS)) for one in ids)]
    stripes_of: dict[tuple[str, str], list[int]] = {}
    for stripe in range(stripes):
        order = source.sample(ids, peers)
        for at, child in enumerate(order):
            parent = "origin" if at == 0 else order[(at - 1) // fan_out]
            stripes_of.setdefault((parent, child), []).append(stripe)
    edges = [_edge(*ends, found, source.uniform(0.3e6, 30e6)) for ends, found in stripes_of.items()]
    return {"by_region": False, "nodes": nodes, "edges": edges}


def _node(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"id": name, "name": name, "region": "lab", "role": "peer", "version": 87, "share_held": 1.0}
    return {**plain, "depth": 1, "peers": 1, "slowest_s": 1.4, **changes}


def _edge(source: str, target: str, stripes: list[int], bytes_per_s: float) -> dict[str, Any]:
    ends = {"source": source, "target": target, "stripes": stripes, "bytes_per_s": bytes_per_s}
    return {**ends, "rtt_s": 0.04, "transport": "direct", "lan": False}


def broadcast_view(peers: int = 8) -> dict[str, Any]:
    history = [
        {"version": number, "t_bcast_s": 1.9, "bytes_saved_by_deltas": 10**9, "reparentings": number % 2}
        for number in range(28, 88)
    ]
    tree, slowest = tree_of(peers), {"path": ["origin", "p1"], "seconds": 6.2}
    return sample_broadcast(tree=tree, history=history, slowest_branch=slowest)


PLAN: dict[str, Any] = {
    "number": 4,
    "on": 7,
    "off": 1,
    "usd_per_hour": 3.1,
    "lp_bound_usd_per_hour": 2.9,
    "solve_s": 0.2,
    "rate_rollouts_per_second": 14.1,
    "rate_needed_rollouts_per_second": 12.8,
    "t_bcast_s": 1.9,
    "staleness_needed": 2,
    "utilisation": 0.98,
    "infeasible": "",
    "remedies": [],
}
PREDICTED: dict[str, Any] = {
    "utilisation": 0.98,
    "usd_per_hour": 3.1,
    "t_bcast_s": 1.9,
    "staleness_needed": 2,
    "workers_on": 7,
    "steps_per_hour": 3200.0,
}


def event(number: int, kind: str = "activated", **changes: Any) -> dict[str, Any]:
    plain = {"id": number, "at_unix_s": NOW_UNIX_S + number, "kind": kind, "subject": worker(1)["peer_id"]}
    return {**plain, "name": "gpu-1", "detail": f"decision {number}", "cause": "plan 4", **changes}


def capacity_view(workers: list[dict[str, Any]]) -> dict[str, Any]:
    shown = ("peer_id", "name", "pin", "usd_per_hour", "hardware", "region")
    rows = [
        {**{key: one[key] for key in shown}, "on": not one["standby"], "reason": one["reason"], "rollouts_per_s": 1.5}
        for one in workers
        if one["role"] == "peer"
    ]
    activation = {"mode": "act", "on": 7, "standby": 1, "usd_per_hour": 3.2, "switches": 4, "plan": PLAN, "failed": ""}
    corrections = dict.fromkeys(("rate_correction", "t_bcast_correction", "t_train_correction"), 1.0)
    decisions = [event(number) for number in range(5, 0, -1)]
    view = {"mode": "act", "activation": {**activation, **corrections}, "workers": rows, "decisions": decisions}
    return {**view, "providers": None, "spending": None, "at_unix_s": NOW_UNIX_S}


class FleetSite(SampleSite):
    """``posted``: path and body of each act, in order. ``refuse``: names that an act fails for."""

    def __init__(self, workers: int = 8, tree: int = 8) -> None:
        super().__init__()
        self.workers = [worker(number) for number in range(workers + 1)]
        self.events = [event(number, "activated" if number % 2 else "peer_left") for number in range(40, 0, -1)]
        self.posted: list[tuple[str, Any]] = []
        self.refuse: set[str] = set()
        self.invites: list[dict[str, Any]] = []
        self.settings: dict[str, dict[str, Any]] = {
            "staleness_limit": {"value": 4, "least": 0, "most": 64, "configured": 4},
            "publish_every_steps": {"value": 1, "least": 1, "most": 64, "configured": 1, "auto": False},
            "usd_per_hour_max": {"value": None, "least": 0, "most": None, "configured": None},
        }
        facts = {"leases": {"open": 2}, "segments": [{"role": "assistant"}]}
        lines = [{"at_unix_s": NOW_UNIX_S, "text": "joined as peer"}]
        self.views["explain"] = {"title": "what happened", "facts": facts, "lines": lines}
        audit = {"rollouts": 41, "tokens": 2600, "beyond": 3, "worst_nats": 0.02, "bound_nats": 0.01}
        record = AuditRecord(**audit, worst_rollout=812, worst_at=17, sampler="vllm-cpu", trained=38, left_out=3)
        convicted = "sent tokens that its seeds and versions do not give: 3 of 2600 judged"
        peer_id = worker(1)["peer_id"]
        card = card_of_peer(record, peer_id, "gpu-1", banned="", quarantined=convicted, share_audited=1.0)
        invites = [card_of_invite(record, "a1", on_probation=False)]
        self.views["reputations"] = {"peers": [asdict(card)], "invites": [asdict(one) for one in invites]}
        self.views["tokens"] = {"tokens": []}
        self.views["audit"] = {"rows": []}
        self.views["broadcast"] = broadcast_view(tree)
        self.more = [
            web.get("/api/v1/events", self._events),
            web.get("/api/v1/events/{id}", self._event),
            web.post("/api/v1/acts/settings/preview", self._preview),
            web.post("/api/v1/acts/run/preview", self._run_preview),
            web.post("/api/v1/{path:.*}", self._act),
        ]
        self.show()

    def show(self) -> None:
        """Build the views from the changed state."""
        self.views["workers"] = workers_view(self.workers)
        self.views["capacity"] = capacity_view(self.workers)
        self.views["invites"] = {"invites": self.invites}
        self.views["settings"] = self.settings

    async def _events(self, request: web.Request) -> web.Response:
        kind = request.query.get("kind", "")
        found = [one for one in self.events if kind in ("", one["kind"])]
        return web.json_response({"events": found, "kinds": ["activated", "peer_left"], "next_before": None})

    async def _event(self, request: web.Request) -> web.Response:
        return web.json_response(next(one for one in self.events if one["id"] == int(request.match_info["id"])))

    async def _preview(self, request: web.Request) -> web.Response:
        asked = await request.json()
        warnings = ["the learner would wait"] if asked.get("staleness_limit", 9) < 2 else []
        then = {**PREDICTED, "utilisation": 0.9}
        return web.json_response({"now": PREDICTED, "then": then, "sentence": f"Asked {asked}.", "warnings": warnings})

    async def _run_preview(self, request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response({"changes": True, "sentence": f"Asked {asked}.", "warnings": ["It costs 2 $/h."]})

    async def _act(self, request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.json()
        self.posted.append((path, body))
        answer: dict[str, Any] = {}
        if path == "acts/peers":
            answer = self._act_on_peers(body)
        elif path == "acts/settings":
            for name, value in body.items():
                self.settings[name]["value"] = value
            answer = dict(self.settings)
        elif path == "invites":
            ends = time.time() + body["lifetime_s"]
            row = {"id": "a1", "role": "peer", "used": 0, "expires_unix_s": ends, "revoked": False, "banned": 0}
            self.invites.append({**row, "quota": body["quota"], "note": body["note"]})
            answer = {"id": "a1", "invite": SECRET, "command": f"rollcast peer join {SECRET}", "expires_unix_s": ends}
        elif path.startswith("invites/"):
            self.invites[0]["revoked"] = True
            self.invites[0]["banned"] = self.invites[0]["used"] if path.endswith("/ban") else 0
            answer = {"done": ["peer"] * self.invites[0]["used"]}
        self.show()
        return web.json_response(answer)

    def _act_on_peers(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = [one for one in self.workers if one["peer_id"] in body["peers"]]
        for one in asked:
            if one["name"] not in self.refuse:
                one["drained"] = body["act"] == "drain"
        return {
            "done": [one["peer_id"] for one in asked if one["name"] not in self.refuse],
            "failed": [{"peer": one["name"], "error": "it left"} for one in asked if one["name"] in self.refuse],
        }
