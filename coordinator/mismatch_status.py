"""What the learner says of log-probabilities that peers report, as people see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PEER_KEY = "kl_k3:"  # a learner's figure of one peer: this and its id


@dataclass(frozen=True, slots=True)
class MismatchStatus:
    """Of the newest batch: learner against engines. Ratios are learner / engine, KL in nats a token."""

    kl_k3: float
    ratio_mean: float
    outside_share: float
    reported_share: float
    peers_alarming: int
    peers: dict[str, float]  # k3-KL of the worst, by name
    alarm: str  # empty: all is well


def mismatch_status(values: Mapping[str, float], engines: Iterable[tuple[str, str, str]]) -> MismatchStatus | None:
    """From the figures of the newest step; None where nobody reports. engines: (peer id, name, hardware)."""
    if "mismatch_kl_k3" not in values:
        return None
    known = {peer_id: (name, hardware) for peer_id, name, hardware in engines}
    by_id = {key.removeprefix(PEER_KEY): value for key, value in values.items() if key.startswith(PEER_KEY)}
    worst = max(by_id, key=lambda peer_id: by_id[peer_id], default="")
    alarming = int(values.get("mismatch_peers_alarming", 0.0))
    alarm = ""
    if alarming and worst:
        name, hardware = known.get(worst, (worst, "left"))
        whom = "1 peer" if alarming == 1 else f"{alarming} peers"
        alarm = (
            f"log-probabilities of {whom} are not the learner's: most of {name} ({hardware}), "
            f"k3-KL {by_id[worst]:.3g} nats a token"
        )
    return MismatchStatus(
        kl_k3=values["mismatch_kl_k3"],
        ratio_mean=values.get("mismatch_ratio_mean", 1.0),
        outside_share=values.get("mismatch_outside_share", 0.0),
        reported_share=values.get("mismatch_reported_share", 0.0),
        peers_alarming=alarming,
        peers={known.get(peer_id, (peer_id, ""))[0]: value for peer_id, value in by_id.items()},
        alarm=alarm,
    )
