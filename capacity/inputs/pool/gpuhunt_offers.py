"""List machines for rent from the price catalogue of the optional package gpuhunt (https://github.com/dstackai/gpuhunt).

Its offers have no links, traffic prices or preemption rates: the user assumes those (``--assume``), and a row without
them is reported as incomplete.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from capacity.catalogue.gpus import gpu_named
from capacity.inputs.pool.columns import Record
from capacity.inputs.pool.files import ROWS_MAX, Row
from rollcast.runtime.errors import MissingExtra, OffersUnavailable
from rollcast.runtime.install import install_command

DEADLINE_S = 60.0
"""Limit on one query, in seconds: gpuhunt's downloads have no timeout of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """Restrict the offers; an empty tuple and None restrict nothing.

    Args:
        providers: names of providers, as gpuhunt spells them.
        usd_per_hour_max: highest price of a machine.
        spot: True: only machines that can be preempted, False: only others.
    """

    providers: tuple[str, ...] = ()
    usd_per_hour_max: float | None = None
    spot: bool | None = None


@dataclass(slots=True)
class _Answer:
    items: list[Any] = field(default_factory=list)
    error: BaseException | None = None


def rentable(wanted: OfferFilter, today: str, deadline_s: float = DEADLINE_S) -> list[Row]:
    """Query gpuhunt, which downloads from the network, and return at most ROWS_MAX offers as rows of a pool.

    Args:
        today: YYYY-MM-DD, the date that the prices carry.
        deadline_s: seconds to wait for gpuhunt.

    Raises:
        MissingExtra: gpuhunt is not installed.
        OffersUnavailable: it does not answer in time, or cannot.
    """
    try:
        gpuhunt = importlib.import_module("gpuhunt")
    except ImportError:
        raise MissingExtra(
            "machines for rent are looked up with gpuhunt, which is not installed",
            fix=f"{install_command('offers')}, or give a pool as a file",
        ) from None
    answer = _Answer()

    def ask() -> None:
        try:
            answer.items = gpuhunt.query(
                provider=list(wanted.providers) or None,
                max_price=wanted.usd_per_hour_max,
                min_gpu_count=1,
                spot=wanted.spot,
            )
        except BaseException as error:  # any error of two dozen providers' clients; reported below
            answer.error = error

    thread = threading.Thread(target=ask, name="gpuhunt", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        raise OffersUnavailable(f"gpuhunt gives no answer within {deadline_s:.0f} s", fix="name fewer with --provider")
    if answer.error is not None:
        raise OffersUnavailable(
            "gpuhunt cannot list machines for rent",
            cause=f"{type(answer.error).__name__}: {answer.error}",
            fix="check the network and the names given with --provider",
        ) from None
    source = f"gpuhunt {_version()}"
    return rows_of_items(answer.items[:ROWS_MAX], source, today)


def rows_of_items(items: Iterable[Any], source: str, today: str) -> list[Row]:
    """Turn gpuhunt's catalogue items into rows of a pool; absent prices and GPU names stay absent."""
    records = [_record(item, source, today) for item in items]
    return [Row(f"{source} offer {record['worker_id']}", record) for record in records]


def _record(item: Any, source: str, today: str) -> Record:
    kind = "spot" if item.spot else "on-demand"
    record: Record = {
        "worker_id": f"{item.provider}/{item.location}/{item.instance_name}/{kind}",
        "name": item.instance_name,
        "provider": item.provider,
        "region": f"{item.provider}:{item.location}",
        "gpus": item.gpu_count,
        "spot": item.spot,
        "price_source": source,
        "price_date": today,
    }
    if item.price is not None:
        record["usd_per_hour"] = item.price
    if item.gpu_name:
        known = gpu_named(item.gpu_name, item.gpu_memory)
        record["hardware"] = known.name if known is not None else item.gpu_name
    return record


def _version() -> str:
    found = getattr(importlib.import_module("gpuhunt.version"), "__version__", "")
    return str(found)
