"""The events of a coordinator that serves a cell: what its uplink brings from the head (docs/scale.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollcast.wire.ids import LeaseId, PeerId

LentKey = tuple[LeaseId, int]  # the head's lease, and the sample index of a slot


@dataclass(frozen=True, slots=True)
class SlotsOver:
    """Slots of the head are over, with the reason for each: empty if the head has stored its rollout.

    ``leases``: whole leases, by reason.
    """

    reasons: Mapping[str, tuple[LentKey, ...]]
    leases: Mapping[str, tuple[LeaseId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MembersConvicted:
    """The head's audits convicted members of this cell: the reason by peer."""

    reasons: Mapping[PeerId, str]


CellEvent = SlotsOver | MembersConvicted
