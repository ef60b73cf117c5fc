"""Define identifiers as types of their own, so that the type checker rejects one in the place of another."""

from __future__ import annotations

from typing import Literal, NewType

PeerId = NewType("PeerId", str)  # libp2p form of an Ed25519 public key: 12D3KooW...
RunId = NewType("RunId", str)
Epoch = NewType("Epoch", int)
Version = NewType("Version", int)  # learner step at which a snapshot was frozen
Step = NewType("Step", int)  # learner steps completed
GroupId = NewType("GroupId", int)
LeaseId = NewType("LeaseId", int)
FencingToken = NewType("FencingToken", int)
RolloutId = NewType("RolloutId", int)
EpisodeId = NewType("EpisodeId", int)  # of one opening of an environment
UploadId = NewType("UploadId", int)
PlanId = NewType("PlanId", int)
EncodingId = NewType("EncodingId", int)
ChunkIndex = NewType("ChunkIndex", int)
StripeId = NewType("StripeId", int)  # stripe of the current relay plan

Role = Literal["cell", "coordinator", "gateway", "learner", "origin", "peer"]
InvitedRole = Literal["peer", "origin", "cell"]  # the roles that the operator makes invites for

IDS_PER_INCARNATION = 1 << 32
"""Ids of leases that one coordinator process may issue; far more than it ever could."""
