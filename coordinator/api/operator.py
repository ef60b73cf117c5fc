"""Serve the operator's acts on peers, prices and settings, and previews, which change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, Field, model_validator

from coordinator.api.settings import (
    ProposedSettings,
    RunSettings,
    SettingsChange,
    budget_in_force,
    orders_of,
    proposed_settings,
    settings_of,
)
from coordinator.core.activation.preview import Change, Preview
from coordinator.core.core import CoordinatorCore
from coordinator.core.events.operator_events import (
    Order,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
)
from coordinator.core.events.prices import Budget, Price
from coordinator.http.routes import Answer, Body, Call, Route
from coordinator.ledger.saved_orders import with_price
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId

NO_ONE = "no peer has this id, or several have this name; `rollcast workers` lists names, `--json` their ids"

PEERS_AT_ONCE_MAX = 4096
REASON_LENGTH_MAX = 200
RATE_MOST = 1e6  # dollars or preemptions an hour, or dollars a GB, above which a price is a slip

PeerAct = Literal["drain", "enable", "ban", "pin_on", "pin_off", "pin_auto"]


class PeersAct(Body):
    """An act on peers, which are named by id or by a name that only one peer has."""

    act: PeerAct
    peers: list[str] = Field(min_length=1, max_length=PEERS_AT_ONCE_MAX)
    reason: str = Field("", max_length=REASON_LENGTH_MAX)


class Failed(BaseModel):
    """A peer that the act did not change, and the reason."""

    peer: str
    error: str


class PeersDone(BaseModel):
    """The outcome of an act; ``done`` holds peer ids."""

    done: list[str]
    failed: list[Failed]


class PriceAct(Body):
    """The price of the peers that match the patterns (``*`` and ``?`` as in file names)."""

    usd_per_hour: float = Field(ge=0.0, le=RATE_MOST)
    peer_id: str = "*"
    name: str = "*"
    hardware: str = "*"
    region: str = "*"
    egress_usd_per_gb: float = Field(0.0, ge=0.0, le=RATE_MOST)
    preemptions_per_hour: float = Field(0.0, ge=0.0, le=RATE_MOST)


class PreviewAsked(SettingsChange):
    """A change of settings or an act on peers, to be previewed."""

    act: PeerAct | None = None
    peers: list[str] = Field(default_factory=list, max_length=PEERS_AT_ONCE_MAX)
    reason: str = Field("", max_length=REASON_LENGTH_MAX)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> PreviewAsked:
        if bool(self.peers) is not (self.act is not None):
            raise ValueError("give an act and its peers together")
        return self


class Previews(Protocol):
    """Predicts the consequences of a change."""

    async def preview(self, change: Change) -> Preview: ...


@dataclass(frozen=True, slots=True)
class _Target:
    peer_id: PeerId
    name: str
    drained: str
    banned: str
    quarantined: str


class ActRoutes:
    """Routes of operator acts.

    Args:
        give: carries orders out, durably.
        fleet_usd_per_hour_max: the hourly limit for workers at providers in USD now; None: no limit or no providers.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        give: Callable[..., Awaitable[None]],
        previews: Previews,
        fleet_usd_per_hour_max: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._core = core
        self._give = give
        self._previews = previews
        self._fleet_usd_per_hour_max = fleet_usd_per_hour_max

    def routes(self) -> list[Route]:
        settings = "/api/v1/acts/settings"
        return [
            Route(
                "POST",
                "/api/v1/acts/peers",
                "operator",
                self._peers,
                "Drain, enable, ban or pin peers.",
                body=PeersAct,
                answer=PeersDone,
                act="peers",
                needs_run=True,
                about=_about_peers,
                outcome=_outcome_of_peers,
            ),
            Route(
                "POST",
                "/api/v1/acts/price",
                "operator",
                self._price,
                "Set the price of peers.",
                body=PriceAct,
                act="price",
                needs_run=True,
            ),
            Route(
                "GET",
                "/api/v1/settings",
                "viewer",
                self._settings,
                "Return the settings that can be changed.",
                answer=RunSettings,
            ),
            Route(
                "POST",
                settings,
                "operator",
                self._set,
                "Set S, kappa and the budget.",
                body=SettingsChange,
                answer=RunSettings,
                act="settings",
                needs_run=True,
            ),
            Route(
                "POST",
                f"{settings}/preview",
                "operator",
                self._preview,
                "Predict the consequences of a change or an act.",
                body=PreviewAsked,
                answer=Preview,
                needs_run=True,
            ),
        ]

    # ---------------------------------------------------------------- peers

    async def _peers(self, call: Call) -> Answer:
        body: PeersAct = call.body
        orders: dict[PeerId, Order] = {}
        failed: list[Failed] = []
        for words in dict.fromkeys(body.peers):
            target = self._target(words)
            error = NO_ONE if target is None else _no_effect(body.act, target)
            if target is None or error:
                failed.append(Failed(peer=words, error=error))
            else:
                orders[target.peer_id] = _order(body.act, target, body.reason)
        await self._give(*orders.values())
        return PeersDone(done=list(orders), failed=failed)

    def _target(self, words: str) -> _Target | None:
        peer_id = self._core.peer_named(words)
        if peer_id is None:
            return None
        reputation = self._core.state.members.reputation(peer_id)
        return _Target(peer_id, reputation.name, reputation.drained, reputation.banned, reputation.quarantined)

    async def _price(self, call: Call) -> Answer:
        price = Price(**call.body.model_dump())
        prices = with_price(self._core.prices, price)
        await self._give(PricesChanged(prices))
        peers = [one for one in self._core.state.members if one.role == "peer"]
        matching = sum(
            price.matches(peer_id=one.peer_id, name=one.name, hardware=one.hardware, region=one.region) for one in peers
        )
        return {"prices": len(prices), "peers_matching": matching, "peers": len(peers)}

    # ---------------------------------------------------------------- settings

    @property
    def _budget(self) -> Budget:
        return budget_in_force(self._core.budget, self._fleet_usd_per_hour_max())

    async def _settings(self, _call: Call) -> Answer:
        return settings_of(self._core, self._budget)

    async def _set(self, call: Call) -> Answer:
        wanted = self._proposed(call.body)
        await self._give(*orders_of(wanted, self._core.rules.rules, self._budget))
        return settings_of(self._core, self._budget)

    async def _preview(self, call: Call) -> Answer:
        asked: PreviewAsked = call.body
        wanted = self._proposed(asked)
        change = Change(
            staleness_limit=wanted.staleness_limit,
            publish_every_steps=wanted.publish_every_steps,
            usd_per_hour_max=wanted.budget.usd_per_hour_max,
            act=asked.act or "",
            peers=frozenset(self._known(asked.peers)),
        )
        return await self._previews.preview(change)

    def _proposed(self, asked: SettingsChange) -> ProposedSettings:
        if self._core.settings.is_cell and asked.model_fields_set & {"staleness_limit", "publish_every_steps"}:
            raise MalformedMessage(
                "a cell has no S and no kappa of its own",
                cause="the head forms the batches, and its learner publishes the versions",
                fix="change them at the head",
            )
        return proposed_settings(asked, self._core.rules, self._budget, steps=self._core.settings.steps)

    def _known(self, peers: Iterable[str]) -> Iterable[PeerId]:
        found = [peer_id for words in peers if (peer_id := self._core.peer_named(words)) is not None]
        if peers and not found:
            raise MalformedMessage("none of these peers belongs to this run", fix="give ids, or unique names")
        return found


def _no_effect(act: PeerAct, target: _Target) -> str:
    """Return why the act would change nothing; empty if it would."""
    if act == "enable" and not (target.drained or target.banned or target.quarantined):
        return "it is neither drained, banned nor quarantined"
    if act == "drain" and target.banned:
        return "it is banned: enable it first"
    return ""


def _order(act: PeerAct, target: _Target, reason: str) -> Order:
    match act:
        case "drain":
            return PeerDrained(target.peer_id, reason, target.name)
        case "ban":
            return PeerBanned(target.peer_id, reason, target.name)
        case "enable":
            return PeerEnabled(target.peer_id, reason)
        case "pin_on":
            return PeerPinned(target.peer_id, "on")
        case "pin_off":
            return PeerPinned(target.peer_id, "off")
        case "pin_auto":
            return PeerPinned(target.peer_id, "")


def _outcome_of_peers(answer: PeersDone) -> str:
    failed = "".join(f"; not {one.peer}: {one.error}" for one in answer.failed)
    return "done" if not failed else f"{len(answer.done)} done{failed}"


def _about_peers(call: Call) -> tuple[str, str]:
    body: PeersAct = call.body
    return ", ".join(body.peers), f"{body.act}: {body.reason}" if body.reason else body.act
