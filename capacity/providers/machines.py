"""Join a pool's rows with their workers: each machine that a provider can start, at which terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.speeds import worker_of
from capacity.inputs.pool.starts import Address
from capacity.model.workers import Worker
from capacity.providers.base import Offer
from rollcast.runtime.errors import ProviderFailed

STARTED_BY_US = ("local", "ssh", "sky", "kubernetes")
"""Values of a row's ``start`` that name a provider of Rollcast; files start the others, or their owners."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a pool that a provider can start; its worker is on offer under that provider's name."""

    row: PoolRow
    worker: Worker

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    @property
    def upload_cap_bytes_per_second(self) -> float:
        """Return the upload cap that it is started with; 0: no cap, because its egress is free."""
        return self.worker.upload_bytes_per_second if self.worker.egress_usd_per_gb else 0.0

    def offer(self, tail_s: float) -> Offer:
        """Return the offer that the planner and the budget use; ``tail_s``: see Offer."""
        row = self.row
        return Offer(
            worker=self.worker, minimum_s=row.minimum_billing_s, granularity_s=row.billing_granularity_s, tail_s=tail_s
        )

    def peer(self, *configurations: Mapping[str, Any]) -> dict[str, Any]:
        """Return its peer's configuration: each of these over the one before it, with the row's address over all."""
        merged: dict[str, Any] = {}
        for one in configurations:
            merged |= one
        if self.row.advertise:
            port = Address.parse(self.row.advertise).port
            listen = {"host": "0.0.0.0", "port": port, "advertise": self.row.advertise}
            merged["link"] = {**merged.get("link", {}), **listen}
        return merged


def provider_of(row: PoolRow) -> str:
    """Return the name under which a row's workers are started and accounted, for example ``sky-vast`` or ``local``."""
    return f"{row.start}-{row.provider}" if row.provider else row.start


def machines_of(rows: Iterable[PoolRow], workers: Iterable[Worker]) -> tuple[Machine, ...]:
    """Return the machines that our providers can start, in the order of the rows.

    Args:
        workers: of these rows, by whom they are found; a machine without one has no known speed, so that no plan
            chooses it.
    """
    known = {worker.worker_id: worker for worker in workers}
    return tuple(
        Machine(row, replace(known.get(worker_id) or worker_of(row, worker_id), provider=provider_of(row)))
        for row in rows
        if row.start in STARTED_BY_US
        for worker_id in row.worker_ids
    )


def find_machine(machines: Mapping[str, Machine], worker_id: str, provider: str) -> Machine:
    """Return a provider's machine.

    Raises:
        ProviderFailed: the pool has no such row any more.
    """
    if worker_id not in machines:
        raise ProviderFailed(f"{provider} has no worker {worker_id}", fix="put its row back into the pool")
    return machines[worker_id]
