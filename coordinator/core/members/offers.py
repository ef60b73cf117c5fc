"""Workers that are not here yet but could be, and those that are here because they were: the capacity model's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from capacity.model.workers import Worker
from coordinator.core.events.prices import ActivationSettings, Price
from rollcast.wire.ids import PeerId


class Offers:
    """What providers offer beside the peers that are here. Ids of the two never mix: a worker's is short."""

    def __init__(self) -> None:
        self.workers: Mapping[str, Worker] = {}
        """By worker id; ``active``: it is being started, or runs and has not joined yet."""
        self.backed: Mapping[PeerId, Worker] = {}
        """What each peer that runs at a provider was offered as."""

    def replace(self, workers: Iterable[Worker], backed: Mapping[PeerId, Worker], unknown: ActivationSettings) -> None:
        """What is offered now; links that nobody knows are taken to be as those of peers that were not measured.

        A worker of whom nobody says what it makes cannot be planned with.
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
        """What a peer costs at its provider; None where it does not come from one."""
        worker = self.backed.get(peer_id)
        if worker is None:
            return None
        return Price(
            usd_per_hour=worker.usd_per_hour,
            egress_usd_per_gb=worker.egress_usd_per_gb,
            preemptions_per_hour=worker.preemptions_per_hour,
        )

    def worker_id(self, switched: str) -> str:
        """The offer that is meant by a worker's id or by its peer's; empty: neither."""
        backed = self.backed.get(PeerId(switched))
        return switched if switched in self.workers else "" if backed is None else backed.worker_id
