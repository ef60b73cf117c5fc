"""Keep the workers that providers offer, and the peers that run at providers, as the capacity model sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from capacity.model.workers import Worker
from coordinator.core.events.prices import ActivationSettings, Price
from rollcast.wire.ids import PeerId


class Offers:
    """Holds what providers offer besides the connected peers. Ids of the two never collide: a worker's is short."""

    def __init__(self) -> None:
        self.workers: Mapping[str, Worker] = {}
        """Offered workers by id; an ``active`` one is being started, or runs and has not joined yet."""
        self.backed: Mapping[PeerId, Worker] = {}
        """The offer from which each peer that runs at a provider came."""

    def replace(self, workers: Iterable[Worker], backed: Mapping[PeerId, Worker], unknown: ActivationSettings) -> None:
        """Replace the offers by the present ones; unknown links get the rates assumed of peers without a measurement.

        Workers without a known speed are left out, because no plan can use them.
        """
        self.backed = backed
        self.workers = {
            one.worker_id: replace(
                one,
                upload_bytes_per_second=one.upload_bytes_per_second or unknown.unknown_upload_bytes_per_second,
                download_bytes_per_second=one.download_bytes_per_second or unknown.unknown_download_bytes_per_second,
            )
            for one in workers
            if one.speeds
        }

    def price_of(self, peer_id: PeerId) -> Price | None:
        """Return a peer's price at its provider; None if it does not come from one."""
        worker = self.backed.get(peer_id)
        if worker is None:
            return None
        return Price(
            usd_per_hour=worker.usd_per_hour,
            egress_usd_per_gb=worker.egress_usd_per_gb,
            preemptions_per_hour=worker.preemptions_per_hour,
        )

    def worker_id(self, switched: str) -> str:
        """Return the id of the offer that a worker's id or its peer's id stands for; empty if there is none."""
        backed = self.backed.get(PeerId(switched))
        return switched if switched in self.workers else "" if backed is None else backed.worker_id
