"""The operator's orders over HTTP: pins, prices, S. Whoever gives one must know the key in the run folder's secrets."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from coordinator.activation_settings import Price
from coordinator.operator_events import Order, PeerPinned, PricesChanged, StalenessLimitChanged
from coordinator.orders import ORDERS, Orders, price_from, with_price
from coordinator.store import RunStore
from rollcast.runtime.errors import MalformedMessage, WrongKey
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import PeerId

KEY_FILE = "operator.key"  # in the run folder's secrets
BODY_DEADLINE_S = 5.0
LEDGER_DEADLINE_S = 30.0
_PINS = {"on": "on", "off": "off", "auto": ""}


class Run(Protocol):
    """What orders are about."""

    def peer_named(self, words: str) -> PeerId | None: ...

    @property
    def prices(self) -> tuple[Price, ...]: ...

    @property
    def staleness_limits(self) -> range: ...


def operator_key(folder: Path) -> str:
    """The key of a run's operator, made at the first start; only the run folder's owner can read it.

    Raises:
        RunFolderError: it can be neither read nor written.
    """
    path = folder / KEY_FILE
    try:
        if path.exists():
            return path.read_text().strip()
        key = secrets.token_urlsafe(32)
        write_atomically(path, f"{key}\n".encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None
    return key


class OrderKeeping:
    """Carries orders out, and writes them down for a coordinator after us."""

    def __init__(self, apply: Callable[[Order], None], ledger: RunStore, orders: Orders) -> None:
        self._apply = apply
        self._ledger = ledger
        self._orders = orders

    async def give(self, order: Order) -> None:
        """Returns once the order outlives us.

        Raises:
            StoreError, WaitTimedOut: the ledger does not keep it.
        """
        self._apply(order)
        self._orders.take(order)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to keep an order"):
            await self._ledger.set_meta(ORDERS, self._orders.to_json())


class OperatorApi:
    """Args: give: carries an order out, durably."""

    def __init__(self, key: str, run: Run, give: Callable[[Order], Awaitable[None]]) -> None:
        self._key = key.encode()
        self._run = run
        self._give = give

    def add_routes(self, app: web.Application) -> None:
        """Each takes a JSON object."""
        app.router.add_post("/api/v1/capacity/pin", self._pin)
        app.router.add_post("/api/v1/capacity/price", self._price)
        app.router.add_post("/api/v1/staleness-limit", self._staleness_limit)

    async def _pin(self, request: web.Request) -> web.Response:
        values = await self._values(request)
        words, pin = values.get("peer"), values.get("pin")
        if not isinstance(words, str) or pin not in _PINS:
            raise MalformedMessage("an order to pin names a peer, and on, off or auto")
        peer_id = self._run.peer_named(words)
        if peer_id is None:
            raise MalformedMessage(f"no peer here is called {words!r}", fix="give its id, or a name that only it has")
        await self._give(PeerPinned(peer_id, _PINS[pin]))  # type: ignore[arg-type]
        return web.json_response({"peer_id": peer_id, "pin": pin})

    async def _price(self, request: web.Request) -> web.Response:
        prices = with_price(self._run.prices, price_from(await self._values(request)))
        await self._give(PricesChanged(prices))
        return web.json_response({"prices": len(prices)})

    async def _staleness_limit(self, request: web.Request) -> web.Response:
        limit, limits = (await self._values(request)).get("staleness_limit"), self._run.staleness_limits
        if not isinstance(limit, int) or limit not in limits:
            raise MalformedMessage(
                f"S can be set from {limits.start} to {limits.stop - 1} while this run goes on",
                cause="versions are kept for no more than the S that it was started with",
                fix="start the coordinator and the learner again with a larger run.staleness_limit",
            )
        await self._give(StalenessLimitChanged(limit))
        return web.json_response({"staleness_limit": limit})

    async def _values(self, request: web.Request) -> Mapping[str, Any]:
        """The order, if it comes from the operator.

        Raises:
            WrongKey: it does not.
            MalformedMessage: it is no JSON object.
        """
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(key.encode(), self._key):
            raise WrongKey(
                "this order does not carry the key of the run's operator",
                fix=f"give the run folder to the command: its secrets have {KEY_FILE}",
            )
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await request.read()
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise MalformedMessage("an order is a JSON object")
        return values
