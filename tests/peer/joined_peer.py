"""Make peers that have joined the scripted coordinator's run already."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from peer.config import PeerConfig
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.invite import Invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import sampling_to_pb
from rollcast.wire.versions.chunk_store import ChunkStore
from tests.peer.scripted_coordinator import RUN_ID, ScriptedCoordinator, peer_credentials, welcome
from tests.peer.versions import LEARNER, stored_version
from tests.peer.worker.core.worker_samples import SAMPLING

Role = Literal["peer", "origin"]


def welcome_to(run_id: str, **changes: Any) -> pb.CoordinatorMessage:
    return welcome(
        run_id=run_id,
        learner_public_key=LEARNER.public_key,
        prompt_tokens_max=16,
        sampling=sampling_to_pb(SAMPLING),
        prefetch_batches=2.0,
        **changes,
    )


def joined_config(folder: Path, coordinator: ScriptedCoordinator, role: Role = "peer", **changes: Any) -> PeerConfig:
    """Return the configuration of a peer that has joined already: its certificate is in its folder."""
    identity = Identity.load_or_create(folder / "identity.key")
    peer_credentials(coordinator.ca, identity, role).save(folder)
    invite = Invite(
        run_id=coordinator.ca.run_id,
        role=role,
        http_url="http://127.0.0.1:1",
        grpc_address=coordinator.address,
        ca_sha256=coordinator.ca.fingerprint,
        learner_public_key=LEARNER.public_key.hex(),
        token="token",
    )
    fields = {"role": role, "name": folder.name, "invite": invite.encode(), "state_folder": folder}
    fields["limits"] = {"polite": False}  # this process is the test's
    return PeerConfig.model_validate({**fields, "engine": {"concurrent_rollouts": 4}, **changes})


def keep_version(folder: Path, version: int) -> None:
    """Store a version as an earlier process of the peer would have."""
    store = ChunkStore(folder / "versions" / RUN_ID, 4)
    stored_version(store, version)
    store.close()
