"""Describe for people what the learner reports about peers' tokens and their reported log-probabilities. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KL_KEY = "kl_k3:"  # prefix of the learner's figures about one peer, before its id
LACKS_KEY = "lacks:"
PEER_KEYS = (KL_KEY, LACKS_KEY)


@dataclass(frozen=True, slots=True)
class MismatchStatus:
    """Learner against engines in the newest batch. Ratios are learner / engine, KL is in nats a token."""

    kl_k3: float
    ratio_mean: float
    outside_share: float
    reported_share: float
    peers_alarming: int
    peers: dict[str, float]  # k3-KL of the worst peers, by name
    sampling_lacks_share: float  # share of the randomness that tokens should have which is missing; of the last batches
    sampling_peers_alarming: int
    sampling_peers: dict[str, float]  # the same share of the worst peers, by name
    alarm: str  # empty if all is well


def mismatch_status(values: Mapping[str, float], engines: Iterable[tuple[str, str, str]]) -> MismatchStatus | None:
    """Return the status from the figures of the newest step; None if it has none.

    Args:
        values: the learner's figures.
        engines: (peer id, name, hardware) of each member.
    """
    if "mismatch_kl_k3" not in values and "sampling_lacks_share" not in values:
        return None
    known = {peer_id: (name, hardware) for peer_id, name, hardware in engines}
    divergence, lacks = _by_peer(values, KL_KEY), _by_peer(values, LACKS_KEY)
    other, cool = (int(values.get(f"{kind}_peers_alarming", 0.0)) for kind in ("mismatch", "sampling"))
    alarms: list[str] = []
    if other and divergence:
        worst = max(divergence, key=lambda peer_id: divergence[peer_id])
        alarms.append(
            f"log-probabilities of {_peers(other)} differ from the learner's, most for {_named(known, worst)}: "
            f"k3-KL {divergence[worst]:.3g} nats a token"
        )
    if cool and lacks:
        worst = max(lacks, key=lambda peer_id: lacks[peer_id])
        alarms.append(
            f"tokens of {_peers(cool)} are likelier than chance allows, as if sampled greedily or at a lower "
            f"temperature, most for {_named(known, worst)}: {lacks[worst]:.0%} of the randomness is missing"
        )
    return MismatchStatus(
        kl_k3=values.get("mismatch_kl_k3", 0.0),
        ratio_mean=values.get("mismatch_ratio_mean", 1.0),
        outside_share=values.get("mismatch_outside_share", 0.0),
        reported_share=values.get("mismatch_reported_share", 0.0),
        peers_alarming=other,
        peers=_with_names(divergence, known),
        sampling_lacks_share=values.get("sampling_lacks_share", 0.0),
        sampling_peers_alarming=cool,
        sampling_peers=_with_names(lacks, known),
        alarm="; ".join(alarms),
    )


def _by_peer(values: Mapping[str, float], key: str) -> dict[str, float]:
    return {name.removeprefix(key): value for name, value in values.items() if name.startswith(key)}


def _with_names(by_id: Mapping[str, float], known: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    return {known.get(peer_id, (peer_id, ""))[0]: value for peer_id, value in by_id.items()}


def _named(known: Mapping[str, tuple[str, str]], peer_id: str) -> str:
    name, hardware = known.get(peer_id, (peer_id, "left"))
    return f"{name} ({hardware})"


def _peers(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"
