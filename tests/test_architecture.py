"""The structure that docs/architecture.md promises: who may import whom, and that the pure cores are pure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rollcast", "coordinator", "peer", "learner", "capacity")

#: Package -> packages of ours that it may import (itself always).
MAY_IMPORT = {
    "rollcast.runtime": set(),
    "rollcast.wire": {"rollcast.runtime"},
    "rollcast.policy": {"rollcast.runtime", "rollcast.wire"},
    "rollcast.web": {"rollcast.runtime"},
    "capacity": {"rollcast.runtime", "rollcast.wire"},
    "coordinator": {"rollcast.runtime", "rollcast.wire", "rollcast.web", "capacity"},
    "learner": {"rollcast.runtime", "rollcast.wire", "rollcast.policy"},
    "peer": {"rollcast.runtime", "rollcast.wire", "rollcast.web", "rollcast.policy"},
    "rollcast.sim": {
        "rollcast.runtime",
        "rollcast.wire",
        "rollcast.policy",
        "capacity",
        "coordinator",
        "learner",
        "peer",
    },
    "rollcast.cli": {
        "rollcast.runtime",
        "rollcast.wire",
        "rollcast.web",
        "rollcast.policy",
        "rollcast.sim",
        "capacity",
        "coordinator",
        "learner",
        "peer",
    },
}
NEVER_JAX = ("rollcast.runtime", "rollcast.wire", "rollcast.web", "capacity", "coordinator")
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}

#: Decisions only: these modules take time and randomness as arguments and do no I/O.
PURE = (
    "peer/session/coordinators.py",
    "peer/discovery/mdns_record.py",
    "peer/port_map/core.py",
    "peer/port_map/natpmp.py",
    "rollcast/wire/joining/bootstrap.py",
    "peer/links/paths.py",
    "peer/reachability/summary.py",
    "rollcast/wire/joining/local_address.py",
    "rollcast/wire/reach_words.py",
    "peer/transports/path_upgrades.py",
    "peer/links/link_rate.py",
    "peer/links/addresses.py",
    "peer/p2p/circuits/dht_key.py",
    "peer/p2p/circuits/book.py",
    "peer/p2p/guests.py",
    "peer/p2p/relay_caps.py",
    "peer/p2p/streams/opening.py",
    "peer/p2p/supervision.py",
    "peer/punching/core.py",
    "peer/worker/pause_reasons.py",
    "peer/session/pending_announcements.py",
    "peer/session/hello.py",
    "peer/worker/partial_pace.py",
    "peer/worker/slots_asked.py",
    "peer/limits/ceilings.py",
    "peer/donor/describe.py",
    "peer/links/network_gate.py",
    "peer/limits/decide.py",
    "peer/donor/page/history.py",
    "peer/limits/quota.py",
    "peer/donor/updates.py",
    "peer/limits/schedule.py",
    "coordinator/rpc/clones.py",
    "coordinator/core/operator.py",
    "coordinator/core/core.py",
    "coordinator/ledger/invite_rows.py",
    "coordinator/core/events/operator_events.py",
    "coordinator/ledger/saved_orders.py",
    "coordinator/core/activation/preview.py",
    "coordinator/core/members/standby.py",
    "coordinator/core/members/membership.py",
    "coordinator/core/leases/lease_book.py",
    "coordinator/core/staleness/age.py",
    "coordinator/core/leases/batches.py",
    "coordinator/core/broadcast/planner.py",
    "coordinator/core/broadcast/nodes.py",
    "coordinator/core/broadcast/mesh.py",
    "coordinator/core/broadcast/tree_groups.py",
    "coordinator/core/broadcast/trees.py",
    "coordinator/core/broadcast/assignments.py",
    "coordinator/core/decisions/broadcasts.py",
    "peer/links/gate.py",
    "coordinator/core/traversal/bans.py",
    "coordinator/core/reach/address_book.py",
    "coordinator/core/traversal/circuits.py",
    "coordinator/core/events/reach_events.py",
    "coordinator/core/reach/failed_pairs.py",
    "coordinator/core/reach/holes.py",
    "coordinator/core/traversal/matchmaker.py",
    "coordinator/core/traversal/component.py",
    "coordinator/core/traversal/traversal.py",
    "coordinator/rpc/reach_messages.py",
    "coordinator/core/traversal/status.py",
    "coordinator/core/traversal/rate_limit.py",
    "coordinator/core/traversal/rendezvous.py",
    "coordinator/core/broadcast/link_rates.py",
    "coordinator/core/broadcast/probing.py",
    "coordinator/rpc/sites.py",
    "coordinator/shell/core_settings.py",
    "coordinator/core/traversal/dial_backs.py",
    "coordinator/core/reach/dial_settings.py",
    "coordinator/core/leases/drop_counts.py",
    "coordinator/core/status/status.py",
    "coordinator/core/status/peers.py",
    "coordinator/views/alerts.py",
    "coordinator/views/broadcast.py",
    "coordinator/views/capacity.py",
    "coordinator/views/history.py",
    "coordinator/views/registry.py",
    "coordinator/views/overview.py",
    "coordinator/views/samples.py",
    "coordinator/views/relay_tree.py",
    "coordinator/views/versions.py",
    "coordinator/views/phrases.py",
    "coordinator/views/workers.py",
    "coordinator/core/decisions/state.py",
    "coordinator/core/decisions/settings.py",
    "coordinator/core/decisions/intake.py",
    "coordinator/core/leases/groups.py",
    "coordinator/core/leases/reconnect_grace.py",
    "coordinator/core/members/fair_share.py",
    "coordinator/core/leases/forecast.py",
    "coordinator/core/leases/group_yield.py",
    "coordinator/core/decisions/admission.py",
    "coordinator/core/decisions/rollout_checks.py",
    "coordinator/core/decisions/work_requests.py",
    "coordinator/core/decisions/speculation.py",
    "coordinator/metrics/loop_lag.py",
    "coordinator/core/decisions/issuing.py",
    "coordinator/core/decisions/batching.py",
    "coordinator/core/decisions/selection.py",
    "coordinator/core/leases/usefulness.py",
    "coordinator/core/leases/prompt_queue.py",
    "coordinator/core/broadcast/dissemination.py",
    "coordinator/core/status/broadcast.py",
    "coordinator/core/status/hops.py",
    "coordinator/rpc/heartbeats.py",
    "coordinator/rpc/sanitise.py",
    "coordinator/core/members/progress.py",
    "rollcast/runtime/windows.py",
    "coordinator/core/events/events.py",
    "coordinator/core/events/actions.py",
    "coordinator/core/events/restored.py",
    "coordinator/ledger/retention.py",
    "coordinator/core/causes.py",
    "coordinator/core/decisions/starting.py",
    "coordinator/core/decisions/epoch_change.py",
    "coordinator/core/staleness/epochs.py",
    "coordinator/core/decisions/announcing.py",
    "coordinator/core/decisions/lifecycle.py",
    "coordinator/core/presence.py",
    "coordinator/core/staleness/policy.py",
    "coordinator/core/staleness/age_breakdown.py",
    "coordinator/core/status/staleness.py",
    "coordinator/core/leases/partials.py",
    "coordinator/core/members/mismatch.py",
    "peer/relay/core/core.py",
    "peer/worker/core.py",
    "peer/worker/events.py",
    "peer/worker/status.py",
    "peer/worker/pacing.py",
    "peer/worker/running_batch.py",
    "peer/worker/version_swap.py",
    "peer/worker/lease_book.py",
    "peer/worker/spool.py",
    "peer/relay/core/events.py",
    "peer/relay/core/actions.py",
    "peer/relay/core/state.py",
    "peer/discovery/address_book.py",
    "peer/discovery/own_record.py",
    "peer/relay/core/forwarding.py",
    "peer/relay/core/gossip.py",
    "peer/relay/core/origin.py",
    "peer/relay/core/links.py",
    "peer/relay/core/pulling.py",
    "peer/relay/core/receiving.py",
    "peer/relay/core/window.py",
    "peer/relay/version_book.py",
    "peer/relay/early_chunks.py",
    "peer/relay/core/chunk_set.py",
    "peer/links/token_bucket.py",
    "peer/links/rates.py",
    "peer/mirrors/range_queue.py",
    "peer/relay/heat_map.py",
    "capacity/model/staleness.py",
    "capacity/inputs/calibration.py",
    "capacity/model/run_rules.py",
    "capacity/predict/fleet_model.py",
    "capacity/predict/fleet_parts.py",
    "capacity/model/pacing.py",
    "capacity/predict/prediction.py",
    "capacity/model/slot_times.py",
    "capacity/model/rates.py",
    "capacity/inputs/pool_checks.py",
    "capacity/inputs/pool_columns.py",
    "capacity/inputs/pool_rows.py",
    "capacity/inputs/pool_speeds.py",
    "capacity/inputs/demand_file.py",
    "capacity/questions/scenario_assumptions.py",
    "capacity/inputs/live_pool.py",
    "capacity/reports/calibrated_pool.py",
    "capacity/reports/plan_diff.py",
    "capacity/reports/what_if.py",
    "capacity/reports/tables.py",
    "capacity/reports/plan.py",
    "capacity/reports/explanation.py",
    "capacity/reports/forecast.py",
    "capacity/reports/offers.py",
    "capacity/reports/reference.py",
    "capacity/reports/replan.py",
    "capacity/planner/columns.py",
    "capacity/planner/programme.py",
    "capacity/planner/matrix.py",
    "capacity/planner/linear.py",
    "capacity/planner/totals.py",
    "capacity/planner/rounding.py",
    "capacity/planner/local_search.py",
    "capacity/planner/core_milp.py",
    "capacity/planner/splits.py",
    "capacity/planner/senders.py",
    "capacity/planner/reasons.py",
    "capacity/planner/max_rate.py",
    "capacity/planner/remedies.py",
    "capacity/planner/infeasible.py",
    "capacity/planner/written_plan.py",
    "capacity/questions/inverse.py",
    "capacity/questions/explain.py",
    "capacity/questions/sensitivities.py",
    "capacity/questions/horizon.py",
    "bench/capacity/baselines.py",
    "capacity/replan/events.py",
    "capacity/replan/replanning.py",
    "capacity/replan/corrections.py",
    "capacity/replan/deciding.py",
    "capacity/replan/replaying.py",
    "coordinator/core/activation/activation.py",
    "coordinator/core/members/offers.py",
    "coordinator/fleet/wanted.py",
    "coordinator/core/activation/pool.py",
    "coordinator/core/events/prices.py",
    "coordinator/core/activation/suitability.py",
    "peer/donor/install/units.py",
    "peer/donor/redaction.py",
    "peer/donor/check/findings.py",
    "peer/reachability/nat_kind.py",
    "coordinator/core/activation/status.py",
    "capacity/model/assumptions.py",
    "capacity/model/broadcast_bound.py",
    "capacity/model/demand.py",
    "capacity/model/egress.py",
    "capacity/model/lengths.py",
    "capacity/model/preemption.py",
    "capacity/model/roofline.py",
    "capacity/model/topologies.py",
    "capacity/model/version_bytes.py",
    "bench/capacity/widest_path.py",
    "capacity/model/workers.py",
    "capacity/fleet/billing.py",
    "capacity/fleet/budget.py",
    "capacity/fleet/fleet.py",
    "capacity/fleet/accounts.py",
    "capacity/fleet/events.py",
    "capacity/fleet/rows.py",
    "capacity/fleet/state.py",
    "capacity/fleet/backoff.py",
    "capacity/providers/base.py",
    "capacity/reports/spending.py",
    "capacity/fleet/spending.py",
    "peer/relay/version_paths.py",
    "rollcast/wire/versions/delta.py",
    "rollcast/wire/versions/delta_blocks.py",
    "rollcast/wire/versions/retention.py",
    "rollcast/wire/versions/tensors.py",
    "rollcast/wire/links/frames.py",
    "rollcast/wire/links/tls_records.py",
    "rollcast/wire/versions/safetensors.py",
    "rollcast/wire/text/tokenizer.py",
    "rollcast/wire/rollouts.py",
    "rollcast/policy/sampling/page_pool.py",
    "rollcast/wire/text/stop_strings.py",
    "learner/objective/objective.py",
    "learner/objective/config.py",
    "learner/objective/factors.py",
    "learner/objective/build.py",
    "learner/objective/aggregates.py",
    "learner/objective/advantages.py",
    "learner/publishing/push.py",
    "learner/alignment/sampling_check.py",
    "learner/training/batch_check.py",
    "learner/publishing/epochs.py",
    "peer/relay/codec.py",
)
IMPURE = {
    *("asyncio", "aiohttp", "grpc", "time", "random", "secrets", "socket", "ssl", "sqlite3", "threading"),
    *("subprocess", "os", "pathlib", "shutil", "tempfile", "structlog", "logging"),
}
#: The objective is arithmetic on arrays: jax is its language, not I/O.
JAX_ALLOWED_IN = {"learner/objective/objective.py", "learner/objective/factors.py", "learner/objective/build.py"}


def sources() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


def package_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "rollcast":
        return ".".join(parts[:2]) if len(parts) > 1 and (ROOT / "rollcast" / parts[1]).is_dir() else None
    return parts[0] if parts[0] in PACKAGES else None


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=ids)
def test_imports_point_one_way(path: Path) -> None:
    own = package_of(module_name(path))
    if own is None:
        return
    targets = {found for name in imported_modules(path) if (found := package_of(name)) is not None}
    assert targets - {own} <= MAY_IMPORT[own], f"{own} must not import {targets - {own} - MAY_IMPORT[own]}"


@pytest.mark.parametrize("path", sources(), ids=ids)
def test_jax_stays_out_of_the_control_plane(path: Path) -> None:
    if (package_of(module_name(path)) or "").startswith(NEVER_JAX):
        assert not {name.split(".")[0] for name in imported_modules(path)} & JAX


@pytest.mark.parametrize("name", PURE)
def test_pure_cores_do_no_io(name: str) -> None:
    roots = {module.split(".")[0] for module in imported_modules(ROOT / name)}
    assert not roots & IMPURE
    if name not in JAX_ALLOWED_IN:
        assert not roots & JAX


@pytest.mark.parametrize("path", sources(), ids=ids)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
