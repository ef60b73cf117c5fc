"""Check, peer by peer, whether tokens were sampled with the probabilities that the policy gives them.

An engine that reports honest log-probabilities but samples greedily, at another temperature than requested or from the
likeliest tokens only, agrees with the learner in every value that it reports. Its tokens do not: given the tokens
before it, log p of an honestly sampled token has the mean -H, H being the distribution's entropy, and a variance that
follows from the distribution too. So the sum of log p + H over any tokens is a martingale with known variance, and
Freedman ("On tail probabilities for martingales", 1975, theorem 1.6) bounds how far above zero chance brings it.

Only tokens that are too likely count: batches consist of finished rollouts and of groups whose rewards differ, and that
selection favours unlikely tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from learner.config import SamplingCheckConfig
from learner.training.packing import PackedBatch, TrainingRow
from rollcast.policy.logprobs import TokenStatistics
from rollcast.wire.ids import PeerId

PEER_KEY = "lacks:"  # prefix of a figure's name, before a peer's id
PEERS_MAX = 16  # peers with a figure of their own in a report
PEER_LENGTH_MAX = 58  # characters of an id, because a figure's name has at most 64
WATCHED_MAX = 4096  # peers remembered; those without trained tokens for the longest time are discarded first


@dataclass(frozen=True, slots=True)
class Surplus:
    """Sums over a peer's tokens; tokens of older batches have less weight."""

    surplus: float = 0.0  # sum of log p + entropy, nats
    entropy: float = 0.0  # nats
    variance: float = 0.0  # variance of the surplus if the tokens were sampled honestly, nats squared
    highest: float = 0.0  # highest entropy of a token, nats: no token adds more than this to the surplus

    @property
    def share(self) -> float:
        """Return the share of the expected randomness that the tokens lack; an honest peer's is about 0."""
        return self.surplus / self.entropy if self.entropy > 0.0 else 0.0

    @property
    def sigmas(self) -> float:
        """Return how far the surplus is above 0, in standard errors of a normal tail as heavy as Freedman's bound."""
        if self.surplus <= 0.0:
            return 0.0
        return self.surplus / math.sqrt(self.variance + self.highest * self.surplus / 3.0)

    def alarms(self, config: SamplingCheckConfig) -> bool:
        """Return whether the lacking share is both above its threshold and beyond chance."""
        return self.share > config.lacking_share_max and self.sigmas > config.sigmas

    def faded(self, keep: float) -> Surplus:
        """Return these sums with every earlier token's weight multiplied by ``keep``."""
        return Surplus(keep * self.surplus, keep * self.entropy, keep * keep * self.variance, keep * self.highest)

    def __add__(self, other: Surplus) -> Surplus:
        return Surplus(
            self.surplus + other.surplus,
            self.entropy + other.entropy,
            self.variance + other.variance,
            max(self.highest, other.highest),
        )


class SamplingWatch:
    """Accumulates each peer's surplus over its last batches."""

    def __init__(self, config: SamplingCheckConfig) -> None:
        self._config = config
        self._by_peer: OrderedDict[PeerId, Surplus] = OrderedDict()

    def figures(
        self, rows: Sequence[TrainingRow], packed: PackedBatch, statistics: TokenStatistics
    ) -> dict[str, float]:
        """Add a batch and return the report's figures for the peers that sampled it; empty if there are none.

        statistics: f32 [rows, time], in the layout of ``packed``. The figures are `sampling_lacks_share` over all these
        peers' tokens, `sampling_peers_alarming`, their number that alarms, and the lacking share of the worst peers.
        """
        new = surpluses(rows, packed, statistics)
        for peer, found in new.items():
            before = self._by_peer.pop(peer, Surplus())
            self._by_peer[peer] = before.faded(self._config.keep) + found
        while len(self._by_peer) > WATCHED_MAX:
            self._by_peer.popitem(last=False)
        seen: Mapping[PeerId, Surplus] = {peer: self._by_peer[peer] for peer in new if peer in self._by_peer}
        if not seen:
            return {}
        whole = sum(seen.values(), Surplus())
        alarming = [peer for peer in seen if seen[peer].alarms(self._config)]
        named = [peer for peer in seen if len(peer) <= PEER_LENGTH_MAX]
        # A peer with few tokens may have a large share by chance, so peers that alarm come first.
        worst = sorted(named, key=lambda peer: (peer not in alarming, -seen[peer].share))[:PEERS_MAX]
        return {
            "sampling_lacks_share": whole.share,
            "sampling_peers_alarming": float(len(alarming)),
            **{f"{PEER_KEY}{peer}": seen[peer].share for peer in worst},
        }


def surpluses(rows: Sequence[TrainingRow], packed: PackedBatch, statistics: TokenStatistics) -> dict[PeerId, Surplus]:
    """Sum the surplus of each peer's trained tokens; tokens with a NaN or infinite value are left out.

    NaN are the tokens that the learner did not score itself.
    """
    found: dict[PeerId, Surplus] = {}
    for row, (line, place) in zip(rows, packed.places, strict=True):
        for segment, span in row.spans(place.start):
            trained = np.frombuffer(segment.loss_mask, np.uint8) > 0
            logprobs, entropies, variances = (
                np.asarray(leaf)[line, span][trained].astype(np.float64)
                for leaf in (statistics.logprobs, statistics.entropies, statistics.variances)
            )
            good = np.isfinite(logprobs) & np.isfinite(entropies) & np.isfinite(variances)
            if good.any():
                one = Surplus(
                    float((logprobs + entropies)[good].sum()),
                    float(entropies[good].sum()),
                    float(variances[good].sum()),
                    float(entropies[good].max()),
                )
                found[segment.peer_id] = found.get(segment.peer_id, Surplus()) + one
    return found
