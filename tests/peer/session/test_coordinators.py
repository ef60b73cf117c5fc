"""Test the start of a session: the coordinators to try, the greeting, and announcements that wait."""

from __future__ import annotations

from peer.config import PeerConfig
from peer.engines.base import Placement, Swap
from peer.links.gate import OPEN, NetworkGate
from peer.relay.stats import RelayStats
from peer.session.coordinators import Coordinators
from peer.session.hello import heartbeat_of, hello_of, origin_status, receiving_of
from peer.session.pending_announcements import PendingAnnouncements
from peer.worker.core.status import Receiving, WorkerStatus
from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.limits import HELD_LEASES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.worker.core.worker_samples import key

NAME = HopFailed("name lookup", "run.example:7400", "no address for it")

REFUSED = HopFailed("connection", "192.0.2.1:7400", "192.0.2.1:7400 refuses the connection")


def test_addresses_are_tried_in_turn_for_ever() -> None:
    search = Coordinators(["a:1", "b:1", "a:1", "c:1"])
    tried = []
    for second in range(7):
        tried.append(search.current)
        search.failed(REFUSED, float(second))
    assert tried == ["a:1", "b:1", "c:1", "a:1", "b:1", "c:1", "a:1"]


def test_the_search_can_move_to_any_other_address() -> None:
    search = Coordinators(["a:1", "b:1", "c:1"])
    search.move_to("b:1")
    assert (search.current, search.others) == ("b:1", ["c:1", "a:1"])
    assert Coordinators(["a:1"]).others == []


def test_the_address_of_the_last_session_is_tried_first() -> None:
    search = Coordinators(["a:1", "b:1"])
    search.failed(REFUSED, 0.0)
    search.opened()
    assert search.current == "b:1"
    assert search.problems() == []
    assert search.rows(1.0) == []


def test_a_problem_is_logged_once_until_it_changes_or_ten_minutes_pass() -> None:
    search = Coordinators(["a:1"])
    assert search.failed(NAME, 0.0)
    assert not search.failed(NAME, 599.0)
    assert search.failed(REFUSED, 599.5)
    assert not search.failed(REFUSED, 700.0)
    assert search.failed(REFUSED, 1200.0)
    search.opened()
    assert search.failed(REFUSED, 1201.0)


def test_screens_show_the_failing_hop_of_each_address() -> None:
    search = Coordinators(["run.example:7400", "192.0.2.1:7400"])
    search.failed(NAME, 1.0)
    search.failed(REFUSED, 2.0)
    search.failed(NAME, 3.0)
    first, second = search.rows(5.0)
    assert (first["address"], first["hop"], first["failures"], first["seconds_ago"]) == (
        "run.example:7400",
        "name lookup",
        2,
        2.0,
    )
    assert second["reason"] == "192.0.2.1:7400 refuses the connection"
    assert "firewall" in second["fix"]
    assert search.problems() == [NAME, REFUSED]


def stats(receiving: int | None = None, failure: str = "") -> RelayStats:
    version = None if receiving is None else Version(receiving)
    return RelayStats(version, 3, 40, "", failure, pb.Heartbeat(chunk_bytes_sent=7))


def test_an_origin_offers_no_work() -> None:
    config = PeerConfig(role="origin", name="origin")
    hello = hello_of(config, advertise="h:1", cores=2, accelerator=None, held_versions=[Version(3)], held_leases=None)
    assert (hello.role, hello.concurrent_rollouts, hello.has_held_leases) == ("origin", 0, False)
    assert list(hello.held_versions) == [3]


def test_a_worker_names_its_accelerator_its_cap_and_a_bounded_list_of_leases() -> None:
    config = PeerConfig.model_validate({"link": {"upload_mbit_s_max": 8}, "engine": {"concurrent_rollouts": 5}})
    leases = [LeaseId(number) for number in range(HELD_LEASES_MAX + 5)]
    hello = hello_of(
        config,
        advertise="",
        cores=8,
        accelerator="NVIDIA L4",
        sampler="vllm-cuda",
        held_versions=[],
        held_leases=leases,
    )
    assert (hello.hardware, hello.sampler) == ("8 cores, NVIDIA L4", "vllm-cuda")
    assert (hello.concurrent_rollouts, hello.upload_cap_bytes_per_second) == (5, 1e6)
    assert len(hello.held_leases) == HELD_LEASES_MAX


def test_a_heartbeat_has_the_workers_state_and_the_relays_counters() -> None:
    swap = Swap(Version(4), "delta", 0.25, 30, read_back=True)
    status = WorkerStatus("idle", "no lease", key(4), 100, 2.5, swap, Placement(devices=8, versions=1))
    beat = heartbeat_of(stats(failure="disk full"), status)
    assert (beat.state, beat.reason, beat.active_version) == ("idle", "disk full; no lease", 4)
    assert (beat.tokens_generated, beat.chunk_bytes_sent) == (100, 7)
    assert (beat.engine_devices, beat.engine_versions) == (8, 1)
    assert beat.swap == pb.SwapReport(version=4, kind="delta", paused_s=0.25, moved_bytes=30, read_back=True)
    assert Epoch(0) == key(4).epoch


def test_an_origin_reports_what_it_holds_or_receives() -> None:
    assert origin_status([], None).reason == "waiting for the learner's first version"
    assert origin_status([Version(1), Version(4)], None).reason == "holds versions 1 to 4"
    receiving = receiving_of(stats(9))
    assert receiving == Receiving(9, 3, 40)
    assert origin_status([], receiving).reason == "version 9: 3 of 40 chunks"
    assert receiving_of(stats()) is None


SHUT = NetworkGate(send=False, receive=False, reason="paused")


def announcement(version: int) -> pb.VersionAnnouncement:
    return pb.VersionAnnouncement(record=pb.Signed(payload=bytes([version])))


def test_nothing_is_held_while_receiving_is_allowed() -> None:
    held = PendingAnnouncements()
    assert held.came(announcement(1))
    assert held.allow(OPEN) == []


def test_the_newest_announcements_are_released_once_receiving_is_allowed() -> None:
    held = PendingAnnouncements()
    held.allow(SHUT)
    assert not any(held.came(announcement(version)) for version in range(20))
    assert held.allow(SHUT) == []
    assert held.allow(OPEN) == [announcement(version) for version in range(12, 20)]
    assert held.allow(OPEN) == []
    assert held.came(announcement(21))
