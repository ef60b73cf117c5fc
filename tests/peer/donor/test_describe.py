from __future__ import annotations

from peer.donor.describe import describe
from peer.session.coordinators import Coordinators
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.proto import rollcast_pb2 as pb


def test_what_a_heartbeat_says_is_what_its_owner_sees() -> None:
    heartbeat = pb.Heartbeat(
        state="generating",
        reason="4 rollouts with version 7",
        has_active_version=True,
        active_version=7,
        receiving_version=8,
        receiving_chunks_have=3,
        receiving_chunks_total=40,
        receiving_map=b"\xff\x00",
        p2p="running",
        links=[pb.LinkReport(peer_id="12D3", transport="punched", rtt_s=0.02, bytes_sent=5, bytes_received=6)],
    )
    said = describe(
        pb.Hello(name="attic", held_versions=[5, 6]),
        heartbeat,
        run_id="run",
        peer_id="me",
        search=Coordinators(["host:1"]),
        reach={"reachability": "dialable"},
        connected=True,
        now=0.0,
        uptime_s=3.0,
    )
    assert (said["coordinator"], said["coordinators_failing"]) == ("host:1", [])
    assert (said["name"], said["version_active"], said["version_newest"]) == ("attic", 7, 7)
    assert said["receiving"] == {"version": 8, "chunks_have": 3, "chunks_total": 40, "map": [255, 0]}
    path = {"transport": "punched", "path": "hole-punched"}
    assert said["links"] == [{"peer_id": "12D3", **path, "rtt_s": 0.02, "bytes_sent": 5, "bytes_received": 6}]
    assert said["reach"] == {"reachability": "dialable", "p2p": "running"}


def test_a_peer_that_has_just_begun_holds_nothing() -> None:
    search = Coordinators(["host:1"])
    search.failed(HopFailed("TLS", "host:1", "says nothing"), 1.0)
    ids = {"run_id": "", "peer_id": ""}
    starting = pb.Heartbeat(state="starting")
    said = describe(pb.Hello(), starting, **ids, search=search, reach={}, connected=False, now=3.0, uptime_s=0.0)
    assert said["version_active"] is said["version_newest"] is said["receiving"] is None
    assert [(row["hop"], row["seconds_ago"]) for row in said["coordinators_failing"]] == [("TLS", 2.0)]
