"""Sign this peer's own record, anew when its addresses change and before the last record expires. Pure."""

from __future__ import annotations

from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import LIFETIME_S, PeerRecord, sign_record
from rollcast.wire.ids import RunId
from rollcast.wire.limits import PEER_ADDRESS_LENGTH_MAX, PEER_ADDRESSES_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

_RENEWED_AFTER = 0.5
"""Share of its lifetime after which a record is replaced: a peer that receives it late still has half of it."""


def own_addresses(advertised: str, reachability: pb.Reachability, verdict: pb.DialVerdict | None) -> tuple[str, ...]:
    """Return the addresses at which others can reach this peer without the coordinator's help, the preferred first.

    Args:
        advertised: host:port and libp2p addresses, separated by spaces, as configured at startup; empty: this peer
            cannot be dialled.
        reachability: what was found out since startup.
        verdict: result of the peers that dialled this one; an address that none of them reached is left out. None:
            there is no result yet.
    """
    refuted = verdict.address if verdict is not None and verdict.asked and not verdict.dialable else ""
    direct = [one for one in (reachability.advertise or advertised).split() if one != refuted]
    return tuple(dict.fromkeys((*direct, *reachability.circuits)))


class OwnRecord:
    """This peer's newest record. Times are seconds since 1970; the machine's clock need not be right to the second.

    Args:
        role: "peer" or "origin".
    """

    def __init__(self, identity: Identity, run_id: RunId, role: str) -> None:
        self._identity = identity
        self._run_id = run_id
        self._role = role
        self._record: PeerRecord | None = None
        self.signed: pb.Signed | None = None
        """The newest record with its signature; None until ``update`` was called."""

    def update(self, addresses: tuple[str, ...], now_unix_s: float) -> bool:
        """Set the addresses at which this peer can be reached; return whether that made a new record."""
        addresses = tuple(one for one in addresses if len(one) <= PEER_ADDRESS_LENGTH_MAX)[:PEER_ADDRESSES_MAX]
        before = self._record
        if before is not None and before.addresses == addresses:
            left_s = before.expires_unix_s - now_unix_s
            if (1.0 - _RENEWED_AFTER) * LIFETIME_S < left_s <= LIFETIME_S:
                return False
        # Milliseconds since 1970 grow over restarts of the process without anything being saved.
        sequence = max(int(now_unix_s * 1e3), 1 if before is None else before.sequence + 1)
        expires = int(now_unix_s) + LIFETIME_S
        record = PeerRecord(self._run_id, self._identity.peer_id, self._role, sequence, addresses, expires)
        self._record, self.signed = record, sign_record(record, self._identity)
        return True
