"""Describe the settings that may change during a run, and turn a change into orders to the core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, Field

from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.events.operator_events import BudgetChanged, Order, PublishPeriodChanged, StalenessLimitChanged
from coordinator.core.events.prices import Budget, Mode
from coordinator.core.staleness.policy import LatePolicy, RulesInForce, StalenessRules
from coordinator.http.routes import Body
from rollcast.runtime.errors import MalformedMessage

USD_MOST = 1e9


class RunRules(Protocol):
    """The part of the core that settings are read from."""

    @property
    def settings(self) -> CoreSettings: ...

    @property
    def rules(self) -> RulesInForce: ...

    @property
    def budget(self) -> Budget: ...


class SettingsChange(Body):
    """A change of settings. A limit of null means no limit; a setting that is not named stays."""

    staleness_limit: int | None = Field(None, ge=0)
    publish_every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    usd_per_hour_max: float | None = Field(None, ge=0.0, le=USD_MOST)
    usd_total_max: float | None = Field(None, ge=0.0, le=USD_MOST)


class Setting(BaseModel):
    """A setting: the value in force, the configured one, and the range that may be set; ``most`` null: no bound."""

    value: float | None
    configured: float | None
    least: float = 0
    most: float | None = None


class PeriodSetting(Setting):
    """kappa. With ``auto`` it follows measured broadcasts, and ``configured`` is null."""

    auto: bool


class RunSettings(BaseModel):
    """All settings that can be changed; the late policy and the planner's mode, which cannot.

    Unless that is "act", the two budgets have no effect.
    """

    staleness_limit: Setting
    publish_every_steps: PeriodSetting
    usd_per_hour_max: Setting
    usd_total_max: Setting
    late_policy: LatePolicy
    planner: Mode


@dataclass(frozen=True, slots=True)
class ProposedSettings:
    """The settings that would be in force after a change; ``publish_every_steps`` 0 means auto."""

    staleness_limit: int
    publish_every_steps: int
    budget: Budget


def budget_in_force(ordered: Budget, fleet_usd_per_hour_max: float | None) -> Budget:
    """Return the budget with the tighter of the two hourly limits, if both are set."""
    limits = [one for one in (ordered.usd_per_hour_max, fleet_usd_per_hour_max) if one is not None]
    return replace(ordered, usd_per_hour_max=min(limits, default=None))


def settings_of(run: RunRules, budget: Budget) -> RunSettings:
    """Return the current settings; ``budget`` is the one in force."""
    rules, configured = run.rules, run.settings
    first = configured.activation.budget
    return RunSettings(
        staleness_limit=Setting(
            value=rules.limit,
            configured=configured.staleness_limit,
            least=rules.limit_least,
            most=limit_most(rules.limit, 0 if configured.is_cell else configured.steps),
        ),
        publish_every_steps=PeriodSetting(
            value=rules.publish_every_steps,
            configured=configured.publish_every_steps or None,
            least=1,
            most=rules.limit + 1,
            auto=rules.follows_broadcasts,
        ),
        usd_per_hour_max=Setting(value=budget.usd_per_hour_max, configured=first.usd_per_hour_max),
        usd_total_max=Setting(value=budget.usd_total_max, configured=first.usd_total_max),
        late_policy=configured.late_policy,
        planner=configured.activation.mode,
    )


def limit_most(limit: int, steps: int) -> int:
    """Return the largest S that may be set where ``limit`` is in force: no rollout gets older than the run's steps."""
    return max(limit, steps)


def proposed_settings(change: SettingsChange, rules: RulesInForce, budget: Budget, *, steps: int) -> ProposedSettings:
    """Return the settings after a change, in a run of so many steps.

    Raises:
        MalformedMessage: a value is missing, out of range, or does not fit another.
    """
    named: dict[str, Any] = {name: getattr(change, name) for name in change.model_fields_set}
    for name in ("staleness_limit", "publish_every_steps"):
        if name in named and named[name] is None:
            raise MalformedMessage(f"{name} must have a value")
    limit = int(named.get("staleness_limit", rules.limit))
    period = named.get("publish_every_steps", rules.rules.publish_every_steps)
    period = 0 if period == "auto" else int(period)
    _check(limit, period, limit_most(rules.limit, steps))
    limits = {name: named[name] for name in ("usd_per_hour_max", "usd_total_max") if name in named}
    return ProposedSettings(limit, period, replace(budget, **limits))


def _check(limit: int, period: int, most: int) -> None:
    if not 0 <= limit <= most:
        raise MalformedMessage(
            f"S can be set from 0 to {most} during this run",
            cause="no rollout gets older than the run has steps",
            fix=f"set S to {most} or less",
        )
    if period > limit + 1:
        raise MalformedMessage(
            f"kappa = {period} does not fit S = {limit}",
            cause="the newest version would sometimes be too old",
            fix=f"set kappa from 1 to {limit + 1} or auto, or S from {max(0, period - 1)} to {most}",
        )


def orders_of(wanted: ProposedSettings, rules: StalenessRules, budget: Budget) -> list[Order]:
    """Return the orders that change something, each compatible with the settings before it."""
    period = [PublishPeriodChanged(wanted.publish_every_steps)]
    period = period if wanted.publish_every_steps != rules.publish_every_steps else []
    limit = [StalenessLimitChanged(wanted.staleness_limit)] if wanted.staleness_limit != rules.limit else []
    found: list[Order] = [*limit, *period] if wanted.staleness_limit > rules.limit else [*period, *limit]
    return found if wanted.budget == budget else [*found, BudgetChanged(wanted.budget)]
