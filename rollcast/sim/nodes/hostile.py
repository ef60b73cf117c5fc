"""What a hostile peer uploads: rollouts that no honest peer makes, each recognisable by its form."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rollcast.sim.nodes.coordinator import Malformed
from rollcast.sim.run_settings import VOCABULARY
from rollcast.wire.ids import FencingToken, LeaseId, PeerId, Version
from rollcast.wire.rollouts import Rollout, Segment


def spoiled(rollout: Rollout, random: Random) -> Rollout | Malformed:
    """A rollout changed into one that must not be stored."""
    first = rollout.segments[0]
    match random.randrange(8):
        case 0:
            return replace(rollout, fencing_token=FencingToken(rollout.fencing_token + 1))
        case 1:
            return replace(rollout, lease_id=LeaseId(max(1, rollout.lease_id - 1)))
        case 2:
            return _with(rollout, replace(first, token_ids=(VOCABULARY, *first.token_ids[1:])))
        case 3:
            return _with(rollout, replace(first, version=Version(first.version + 1000)))
        case 4:
            return _with(rollout, replace(first, peer_id=PeerId("somebody")))
        case 5:
            return _with(rollout, replace(first, role="tool"))
        case 6:
            return _with(rollout, replace(first, token_ids=first.token_ids * 99, loss_mask=first.loss_mask * 99))
        case _:
            return Malformed(rollout.lease_id, rollout.fencing_token, rollout.sample_index)


def _with(rollout: Rollout, first: Segment) -> Rollout:
    return replace(rollout, segments=(first, *rollout.segments[1:]))
