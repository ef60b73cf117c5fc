"""Test which heartbeats of a session report the links."""

from __future__ import annotations

from peer.session.hello import LinkReporting
from rollcast.wire.proto import rollcast_pb2 as pb


def beat(*peer_ids: str) -> pb.Heartbeat:
    return pb.Heartbeat(links=[pb.LinkReport(peer_id=one, transport="direct", rtt_s=0.1) for one in peer_ids])


def test_links_are_reported_every_few_seconds_and_when_they_change() -> None:
    reporting, reported = LinkReporting(), []
    for second, links in enumerate(["ab"] * 7 + ["abc"] + ["abc"] * 2):
        heartbeat = beat(*links)
        reporting.thin(heartbeat, float(second))
        assert heartbeat.links_left_out == (not heartbeat.links)
        if heartbeat.links:
            reported.append((second, len(heartbeat.links)))
    assert reported == [(0, 2), (5, 2), (7, 3)]


def test_a_heartbeat_of_a_peer_without_links_leaves_none_out_at_first() -> None:
    heartbeat = beat()
    LinkReporting().thin(heartbeat, 100.0)
    assert not heartbeat.links_left_out, "the coordinator may know links of an earlier session"
