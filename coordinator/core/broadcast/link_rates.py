"""Estimate the rates of peers' links from their heartbeats: smoothed, with an age and a confidence that decays."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from coordinator.core.events.events import PeerFacts
from rollcast.runtime.windows import RecentIdentities
from rollcast.wire.ids import PeerId, Version

_TRUSTED_AFTER_S = 0.25  # seconds of full uplink after which a measurement's confidence is 0.5
_HALF_LIFE_S = 1800.0  # of confidence: home links change with the hour
_CONFIDENCE_MIN = 0.05  # below it a rate counts as unknown
_NEWER_S = 0.25  # two heartbeats whose ages place a measurement closer together report the same one
# A peer whose fastest second stays below this share of what fast receivers of the same broadcasts had is limited by
# its downlink, if it has done so in several: all that keep up receive at one rate, once relays' rates are known.
_SLOW_DOWNLINK_SHARE = 0.85
_FAST_RECEIVERS_QUANTILE = 0.75
_RECEIVERS_MIN = 3  # with fewer the others' rates say little
# In the first broadcast of a run relays' rates are unknown, and members receive at different rates for other reasons.
_BROADCASTS_MIN = 2
_LASTED_S = 2.0  # a broadcast that brought less than the fastest second's bytes for this long shows no rate


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Estimates of one peer's links. Rates are in bytes a second, None if not known.

    Args:
        uplink_confidence: 0 to 1, from how long the uplink was measured and how long ago.
        uplink_age_s: seconds since its last measurement.
        downlink_bytes_per_second: downlink; None unless it limits what the peer receives.
        rtt_s: median round trip of its links in seconds; 0 if not known.
    """

    uplink_bytes_per_second: float | None
    uplink_confidence: float
    uplink_age_s: float
    downlink_bytes_per_second: float | None
    rtt_s: float


@dataclass(slots=True)
class _Record:
    uplink: float = 0.0  # bytes a second, 0: never measured
    weight: float = 0.0  # confidence at the time of measurement
    measured_at: float = 0.0  # on the core's clock
    downlink: float = 0.0  # fastest second of receiving
    broadcasts: int = 0  # that showed how fast it receives
    receiving: Version | None = None
    received_bytes: int = 0  # when it last ended receiving a version
    rtt_s: float = 0.0
    probe_id: int = 0


class LinkRates:
    """Keeps the estimates of each peer's links. Times are the core's clock in seconds."""

    def __init__(self) -> None:
        self._records: RecentIdentities[PeerId, _Record] = RecentIdentities()
        self._fast_downlink = 0.0  # what the faster receivers had; 0: not known

    def joined(self, members: int) -> None:
        """Remember the rates of this many members, and of as many that left and may come back."""
        self._records.make_room(members)

    def observe(self, peer_id: PeerId, facts: PeerFacts, now: float) -> None:
        """Take over a heartbeat's measurements; one without a newer measurement changes nothing."""
        record = self._records.used(peer_id, _Record)
        self._received(record, facts)
        if facts.links:
            rtts = [link.rtt_s for link in facts.links if link.rtt_s > 0]
            record.rtt_s = median(rtts) if rtts else record.rtt_s
        record.probe_id = facts.uplink_probe_id
        measured_at = now - facts.uplink_age_s
        is_newer = record.uplink == 0 or measured_at > record.measured_at + _NEWER_S
        if facts.uplink_bytes_per_second > 0 and facts.uplink_measured_s > 0 and is_newer:
            self._measured(record, facts, measured_at)

    @staticmethod
    def _received(record: _Record, facts: PeerFacts) -> None:
        """Take over the rate of receiving, and count the broadcasts that showed it."""
        record.downlink = facts.downlink_bytes_per_second
        received_bytes = facts.chunk_bytes_from_origin + facts.chunk_bytes_from_peers
        if received_bytes < record.received_bytes:  # the peer's process began anew
            record.received_bytes = 0
        if record.receiving not in (None, facts.receiving_version):
            if received_bytes - record.received_bytes >= _LASTED_S * record.downlink:
                record.broadcasts += 1
            record.received_bytes = received_bytes
        record.receiving = facts.receiving_version

    @staticmethod
    def _measured(record: _Record, facts: PeerFacts, measured_at: float) -> None:
        """Blend in a measurement, weighted by confidence; a change of the link shows after a few of them."""
        weight = facts.uplink_measured_s / (facts.uplink_measured_s + _TRUSTED_AFTER_S)
        old = record.weight * _fading(measured_at - record.measured_at) if record.uplink else 0.0
        share = weight / (weight + (1 - weight) * old)
        record.uplink += share * (facts.uplink_bytes_per_second - record.uplink)
        record.weight = min(1.0, old + (1 - old) * weight)
        record.measured_at = measured_at

    def settle(self) -> None:
        """Update what fast receivers receive; called before plans are made."""
        rates = sorted(record.downlink for record in self._records.values() if record.downlink > 0)
        place = int(_FAST_RECEIVERS_QUANTILE * (len(rates) - 1))
        self._fast_downlink = rates[place] if len(rates) >= _RECEIVERS_MIN else 0.0

    def estimate(self, peer_id: PeerId, now: float, *, upload_cap_bytes_per_second: float = 0.0) -> LinkEstimate:
        """Return the estimates for a peer's links; its uplink is bounded by its owner's cap (0: none)."""
        record = self._records.get(peer_id) or _Record()
        uplink, confidence = self.uplink(peer_id, now, upload_cap_bytes_per_second=upload_cap_bytes_per_second)
        slow = 0 < record.downlink < _SLOW_DOWNLINK_SHARE * self._fast_downlink and record.broadcasts >= _BROADCASTS_MIN
        downlink = record.downlink if slow else None
        return LinkEstimate(uplink, confidence, now - record.measured_at, downlink, record.rtt_s)

    def uplink(
        self, peer_id: PeerId, now: float, *, upload_cap_bytes_per_second: float = 0.0
    ) -> tuple[float | None, float]:
        """Return the uplink's rate, bounded by its owner's cap, and the confidence in it, as in ``estimate``."""
        record = self._records.get(peer_id)
        if record is None or not record.uplink:
            return None, 0.0
        confidence = record.weight * _fading(now - record.measured_at)
        if confidence < _CONFIDENCE_MIN:
            return None, confidence
        cap = upload_cap_bytes_per_second
        return min(record.uplink, cap) if cap else record.uplink, confidence

    def probe_id(self, peer_id: PeerId) -> int:
        """Return the last probe that this peer carried out; 0 if none."""
        record = self._records.get(peer_id)
        return 0 if record is None else record.probe_id


def _fading(age_s: float) -> float:
    return 1.0 if age_s <= 0.0 else float(2.0 ** (-age_s / _HALF_LIFE_S))
