from __future__ import annotations

from peer.config import PeerConfig
from peer.relay.stats import RelayStats
from peer.session.hello import heartbeat_of, hello_of, origin_status, receiving_of
from peer.worker.status import Receiving, WorkerStatus
from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.limits import HELD_LEASES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.worker.worker_samples import key


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
    hello = hello_of(config, advertise="", cores=8, accelerator="NVIDIA L4", held_versions=[], held_leases=leases)
    assert hello.hardware == "8 cores, NVIDIA L4"
    assert (hello.concurrent_rollouts, hello.upload_cap_bytes_per_second) == (5, 1e6)
    assert len(hello.held_leases) == HELD_LEASES_MAX


def test_a_heartbeat_has_the_workers_state_and_the_relays_counters() -> None:
    status = WorkerStatus("idle", "no lease", key(4), 100, 2.5)
    beat = heartbeat_of(stats(failure="disk full"), status)
    assert (beat.state, beat.reason, beat.active_version) == ("idle", "disk full; no lease", 4)
    assert (beat.tokens_generated, beat.chunk_bytes_sent) == (100, 7)
    assert Epoch(0) == key(4).epoch


def test_an_origin_says_what_it_holds_or_receives() -> None:
    assert origin_status([], None).reason == "waiting for the learner's first version"
    assert origin_status([Version(1), Version(4)], None).reason == "holds versions 1 to 4"
    receiving = receiving_of(stats(9))
    assert receiving == Receiving(9, 3, 40)
    assert origin_status([], receiving).reason == "version 9: 3 of 40 chunks"
    assert receiving_of(stats()) is None
