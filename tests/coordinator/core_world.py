"""Build events and a small world around the core, for its tests."""

from __future__ import annotations

from typing import Any, TypeVar

from coordinator.core.core import CoordinatorCore, CoreSettings
from coordinator.core.events.actions import Action, RecordBatch, SendLeases, StoreRollout, SupplyPrompts, each
from coordinator.core.events.events import (
    BatchRecorded,
    Event,
    HeartbeatReceived,
    PeerFacts,
    PeerJoined,
    Prompt,
    PromptsSupplied,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
    VersionAnnounced,
    VersionHeld,
    WorkRequested,
)
from coordinator.core.reach.dial_settings import DialBackSettings
from rollcast.wire.ids import Epoch, PeerId, RunId, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, Slot
from rollcast.wire.token_ids import pack_ids

ActionT = TypeVar("ActionT")

SAMPLING = Sampling(temperature=1.0, max_new_tokens=4, stop_token_ids=(1,))


def settings(**changes: Any) -> CoreSettings:
    """Return settings: two groups of two samples per step, S = 1, every invariant checked after every event."""
    values: dict[str, Any] = {
        "run_id": RunId("run"),
        "seed": 7,
        "steps": 10,
        "staleness_limit": 1,
        "groups_per_step": 2,
        "samples_per_group": 2,
        "sampling": SAMPLING,
        "vocabulary_size": 32,
        "validate_every_event": True,
        "dial_backs": DialBackSettings(enabled=False),
    }
    return CoreSettings(**(values | changes))


def joined(name: str, *, role: str = "peer", address: str | None = None, concurrent: int = 2) -> PeerJoined:
    return PeerJoined(
        peer_id=PeerId(name),
        role=role,
        name=name,
        address=f"{name}:1" if address is None else address,
        concurrent_rollouts=0 if role == "origin" else concurrent,
        hardware="cpu",
        host=name,  # the address above is its own
    )


def heartbeat(name: str, *, state: str = "generating", active: int | None = None, **changes: Any) -> HeartbeatReceived:
    values: dict[str, Any] = {
        "state": state,
        "reason": "",
        "active_version": None if active is None else Version(active),
        "tokens_generated": 0,
        "chunk_bytes_from_origin": 0,
        "chunk_bytes_from_peers": 0,
        "chunk_bytes_sent": 0,
        "chunks_rejected": 0,
        "receiving_version": None,
        "receiving_chunks_have": 0,
        "receiving_chunks_total": 0,
        "tokens_per_second": 0.0,
    }
    return HeartbeatReceived(PeerId(name), PeerFacts(**(values | changes)))


def held(name: str, version: int) -> VersionHeld:
    return VersionHeld(PeerId(name), Epoch(0), Version(version))


def announced(version: int) -> VersionAnnounced:
    return VersionAnnounced(Epoch(0), Version(version), 16)


def wants(name: str, slots: int) -> WorkRequested:
    return WorkRequested(PeerId(name), slots)


def prompt(number: int) -> Prompt:
    return Prompt(f"problem-{number}", (10, number), f"position-{number}")


def rollout(lease: LeaseGrant, sample_index: int, *, version: int = 0, peer: str = "a", **changes: Any) -> Rollout:
    segment = Segment("assistant", Epoch(0), Version(version), PeerId(peer), pack_ids((5, 1)), b"\x01\x01")
    values: dict[str, Any] = {
        "lease_id": lease.lease_id,
        "fencing_token": lease.fencing_token,
        "group_id": lease.group_id,
        "sample_index": sample_index,
        "segments": (segment,),
        "finish_reason": "stop",
        "generate_s": 0.5,
    }
    return Rollout(**(values | changes))


def received(peer: str, upload: int, item: Rollout) -> RolloutReceived:
    return RolloutReceived(UploadId(upload), PeerId(peer), item)


def only(actions: list[Action], kind: type[ActionT]) -> list[ActionT]:
    """Return the actions of one kind."""
    return [action for action in each(actions) if isinstance(action, kind)]


class World:
    """A core with a clock, a prompt source and a store that answers at once; grants are collected by peer."""

    def __init__(self, **changes: Any) -> None:
        self.core = CoordinatorCore(settings(**changes))
        self.now = 0.0
        self.prompts_made = 0
        self.uploads = 0
        self.grants: dict[str, list[LeaseGrant]] = {}

    def handle(self, event: Event) -> list[Action]:
        """Apply an event, then the answers of the store and the prompt source; return all actions in order."""
        actions = self.core.handle(event, self.now)
        done = list(actions)
        for action in actions:
            match action:
                case SupplyPrompts(count):
                    numbers = range(self.prompts_made, self.prompts_made + count)
                    self.prompts_made += count
                    done += self.handle(PromptsSupplied(tuple(prompt(number) for number in numbers)))
                case SendLeases(peer_id, leases):
                    self.grants.setdefault(peer_id, []).extend(leases)
                case StoreRollout(rollout_id):
                    done += self.handle(RolloutStored(rollout_id))
                    done += self.handle(RolloutScored(rollout_id, 1.0))
                case RecordBatch(step):
                    done += self.handle(BatchRecorded(step))
                case _:
                    pass
        return done

    def start(self, *peers: str) -> None:
        """Connect an origin and peers that hold version 0 and have not requested work yet."""
        self.handle(joined("origin", role="origin"))
        for name in peers:
            self.handle(joined(name))
        self.handle(announced(0))
        for name in peers:
            self.handle(held(name, 0))

    def take(self, peer: str) -> list[tuple[LeaseGrant, Slot]]:
        """Return the slots leased to this peer since the last call."""
        return [(grant, slot) for grant in self.grants.pop(peer, []) for slot in grant.slots]

    def finish(self, peer: str, *, version: int = 0) -> list[Action]:
        """Upload a rollout for every slot that the peer holds; return all actions."""
        done: list[Action] = []
        for grant, slot in self.take(peer):
            self.uploads += 1
            item = rollout(grant, slot.sample_index, version=version, peer=peer)
            done += self.handle(received(peer, self.uploads, item))
        return done
