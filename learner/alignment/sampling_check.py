"""Whether tokens were drawn with the probabilities that the policy gives them, peer by peer.

An engine that reports honest log-probabilities and draws greedily, at another temperature than asked for or from the
likeliest tokens only agrees with the learner in every value that it reports. What it draws does not: given what comes
before a token, log p of an honest draw has the mean -H, H being the distribution's entropy, and a variance that follows
from the distribution too. So the sum of log p + H over any tokens is a martingale with known variance, and Freedman
("On tail probabilities for martingales", 1975, theorem 1.6) bounds how far above zero chance brings it.

Only too likely tokens count: batches are made of finished rollouts and of groups whose rewards differ, and such a
choice favours what is unlikely.
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

PEER_KEY = "lacks:"  # before a peer's id
PEERS_MAX = 16  # peers with a figure of their own in a report
PEER_LENGTH_MAX = 58  # of an id: a figure's name has at most 64 characters
WATCHED_MAX = 4096  # peers remembered; those that made nothing for longest are forgotten


@dataclass(frozen=True, slots=True)
class Surplus:
    """Sums over tokens, of older batches with less weight."""

    surplus: float = 0.0  # of log p + entropy, nats
    entropy: float = 0.0  # nats
    variance: float = 0.0  # of the surplus, had the tokens been drawn honestly
    highest: float = 0.0  # entropy of any one token: no draw adds more

    @property
    def share(self) -> float:
        """Of the randomness that the tokens should have, what they lack: 0 is honest."""
        return self.surplus / self.entropy if self.entropy > 0.0 else 0.0

    @property
    def sigmas(self) -> float:
        """How far above zero, in standard errors of a normal distribution with a tail as heavy as the bound's."""
        if self.surplus <= 0.0:
            return 0.0
        return self.surplus / math.sqrt(self.variance + self.highest * self.surplus / 3.0)

    def alarms(self, config: SamplingCheckConfig) -> bool:
        """Whether it is both much and more than chance."""
        return self.share > config.lacking_share_max and self.sigmas > config.sigmas

    def faded(self, keep: float) -> Surplus:
        """With less weight on all that was."""
        return Surplus(keep * self.surplus, keep * self.entropy, keep * keep * self.variance, keep * self.highest)

    def __add__(self, other: Surplus) -> Surplus:
        return Surplus(
            self.surplus + other.surplus,
            self.entropy + other.entropy,
            self.variance + other.variance,
            max(self.highest, other.highest),
        )


class SamplingWatch:
    """What each peer's tokens of the last batches say."""

    def __init__(self, config: SamplingCheckConfig) -> None:
        self._config = config
        self._by_peer: OrderedDict[PeerId, Surplus] = OrderedDict()

    def figures(
        self, rows: Sequence[TrainingRow], packed: PackedBatch, statistics: TokenStatistics
    ) -> dict[str, float]:
        """Take a batch in; what its report says of those that made it. statistics: f32 [rows, time], like ``packed``.

        `sampling_lacks_share`: of all peers' tokens; `sampling_peers_alarming`; and the share of the worst peers.
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
        # Few tokens have a large share by chance: those that alarm come first.
        worst = sorted(named, key=lambda peer: (peer not in alarming, -seen[peer].share))[:PEERS_MAX]
        return {
            "sampling_lacks_share": whole.share,
            "sampling_peers_alarming": float(len(alarming)),
            **{f"{PEER_KEY}{peer}": seen[peer].share for peer in worst},
        }


def surpluses(rows: Sequence[TrainingRow], packed: PackedBatch, statistics: TokenStatistics) -> dict[PeerId, Surplus]:
    """Of the trained tokens of each peer; what is no number is left out."""
    found: dict[PeerId, Surplus] = {}
    for row, (line, span) in zip(rows, packed.places, strict=True):
        at = span.start + len(row.prompt_token_ids)
        for segment in row.segments:
            end = at + len(segment.token_ids)
            trained = np.frombuffer(segment.loss_mask, np.uint8) > 0
            logprobs, entropies, variances = (
                np.asarray(leaf)[line, at:end][trained].astype(np.float64) for leaf in statistics
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
            at = end
    return found
