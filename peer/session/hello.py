"""Build the messages in which a peer introduces itself (Hello) and reports its state (Heartbeat). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from peer.config import PeerConfig
from peer.engines.base import Swap
from peer.links.gate import OPEN, NetworkGate
from peer.relay.stats import RelayStats
from peer.worker.core.status import Receiving, WorkerStatus
from rollcast import __version__
from rollcast.wire import limits
from rollcast.wire.ids import LeaseId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb

_BYTES_PER_MEGABIT = 125_000.0
# Reports on fifteen links take 2 KB: with every heartbeat they would take a tenth of an uplink of 0.2 Mbit/s.
_LINKS_EVERY_S = 5.0


def hello_of(
    config: PeerConfig,
    *,
    advertise: str,
    cores: int,
    accelerator: str | None,
    sampler: str = "",
    held_versions: Sequence[Version],
    held_leases: Sequence[LeaseId] | None,
    instance_id: str = "",
) -> pb.Hello:
    """Return the first message of a session.

    Args:
        accelerator: text that describes the engine's accelerator; None: this peer has no engine.
        sampler: the engine's kind and device.
        held_leases: leases that this peer still holds; None: it never works.
        instance_id: id of this copy of the identity (peer/instance.py).
    """
    processor = f"{cores} cores"
    return pb.Hello(
        protocol=range_to_pb(),
        software=f"rollcast {__version__}",
        role=config.role,
        advertise=advertise,
        concurrent_rollouts=0 if accelerator is None else config.engine.concurrent_rollouts,
        hardware=processor if accelerator is None else f"{processor}, {accelerator}",
        held_versions=held_versions,
        name=config.name,
        region=config.link.region,
        metered=config.link.metered,
        upload_cap_bytes_per_second=(config.link.upload_mbit_s_max or 0.0) * _BYTES_PER_MEGABIT,
        has_held_leases=held_leases is not None,
        held_leases=(held_leases or ())[: limits.HELD_LEASES_MAX],
        instance_id=instance_id,
        public_name=config.public_name,
        sampler=sampler,
    )


def receiving_of(relay: RelayStats) -> Receiving | None:
    """Return the version that is being received; None: none is."""
    return None if relay.receiving is None else Receiving(relay.receiving, relay.have, relay.total)


def heartbeat_of(relay: RelayStats, status: WorkerStatus, gate: NetworkGate = OPEN) -> pb.Heartbeat:
    """Return a heartbeat with the state of worker, relay and gate; its sequence number is not set."""
    heartbeat = pb.Heartbeat(
        state=status.state,
        reason="; ".join(filter(None, (relay.store_failure, status.reason)))[: limits.TEXT_LENGTH_MAX],
        has_active_version=status.active is not None,
        active_version=0 if status.active is None else status.active.version,
        tokens_generated=status.tokens_generated,
        tokens_per_second=status.tokens_per_second,
        sending_stopped=not gate.send,
        receiving_stopped=not gate.receive,
        swap=None if status.swap is None else swap_to_pb(status.swap),
        engine_devices=0 if status.placement is None else status.placement.devices,
        engine_versions=0 if status.placement is None else status.placement.versions,
    )
    heartbeat.MergeFrom(relay.report)
    return heartbeat


class LinkReporting:
    """Decides which heartbeats of a session report the links: one every few seconds, and any with other links."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] | None = None
        self._due_s = 0.0

    def thin(self, heartbeat: pb.Heartbeat, now: float) -> None:
        """Leave the links out of a heartbeat that need not report them."""
        links = {(link.peer_id, link.transport) for link in heartbeat.links}
        if links == self._reported and now < self._due_s:
            heartbeat.ClearField("links")
            heartbeat.links_left_out = True
            return
        self._reported, self._due_s = links, now + _LINKS_EVERY_S


def swap_to_pb(swap: Swap) -> pb.SwapReport:
    """Convert an exchange of weights to a message."""
    return pb.SwapReport(
        version=swap.version,
        kind=swap.kind,
        paused_s=swap.paused_s,
        moved_bytes=swap.moved_bytes,
        read_back=swap.read_back,
    )


def origin_status(held: Sequence[Version], receiving: Receiving | None) -> WorkerStatus:
    """Return the status of a peer without an engine."""
    if receiving is not None:
        return WorkerStatus("receiving", receiving.in_words, None, 0, 0.0)
    reason = f"holds versions {held[0]} to {held[-1]}" if held else "waiting for the learner's first version"
    return WorkerStatus("idle", reason, None, 0, 0.0)
