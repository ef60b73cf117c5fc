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
    "coordinator/clones.py",
    "coordinator/acting.py",
    "coordinator/core.py",
    "coordinator/invite_rows.py",
    "coordinator/operator_events.py",
    "coordinator/orders.py",
    "coordinator/preview.py",
    "coordinator/standing_by.py",
    "coordinator/membership.py",
    "coordinator/leases.py",
    "coordinator/staleness.py",
    "coordinator/batches.py",
    "coordinator/relay_plan.py",
    "coordinator/relay_model.py",
    "coordinator/relay_mesh.py",
    "coordinator/relay_groups.py",
    "coordinator/relay_trees.py",
    "coordinator/relay_parts.py",
    "coordinator/relaying.py",
    "peer/links/gate.py",
    "coordinator/reach/banned.py",
    "coordinator/reach/book.py",
    "coordinator/reach/circuits.py",
    "coordinator/reach/events.py",
    "coordinator/reach/failed_pairs.py",
    "coordinator/reach/holes.py",
    "coordinator/reach/matchmaker.py",
    "coordinator/reach/part.py",
    "coordinator/reach/reaching.py",
    "coordinator/reach/reading.py",
    "coordinator/reach/status.py",
    "coordinator/reach/turns.py",
    "coordinator/reach/rendezvous.py",
    "coordinator/link_rates.py",
    "coordinator/probing.py",
    "coordinator/sites.py",
    "coordinator/configured.py",
    "coordinator/reach/dial_backs.py",
    "coordinator/reach/dial_settings.py",
    "coordinator/accounting.py",
    "coordinator/status.py",
    "coordinator/peer_status.py",
    "coordinator/views/alerts.py",
    "coordinator/views/broadcast.py",
    "coordinator/views/capacity.py",
    "coordinator/views/history.py",
    "coordinator/views/looking.py",
    "coordinator/views/overview.py",
    "coordinator/views/samples.py",
    "coordinator/views/tree.py",
    "coordinator/views/versions.py",
    "coordinator/views/words.py",
    "coordinator/views/workers.py",
    "coordinator/state.py",
    "coordinator/settings.py",
    "coordinator/intake.py",
    "coordinator/groups.py",
    "coordinator/away.py",
    "coordinator/shares.py",
    "coordinator/forecast.py",
    "coordinator/group_yield.py",
    "coordinator/admission.py",
    "coordinator/rollout_checks.py",
    "coordinator/working.py",
    "coordinator/long_tail.py",
    "coordinator/loop_lag.py",
    "coordinator/issuing.py",
    "coordinator/forming.py",
    "coordinator/selection.py",
    "coordinator/usefulness.py",
    "coordinator/prompt_queue.py",
    "coordinator/dissemination.py",
    "coordinator/broadcast_status.py",
    "coordinator/broadcast_hops.py",
    "coordinator/heartbeats.py",
    "coordinator/untrusted.py",
    "coordinator/progress.py",
    "coordinator/figures.py",
    "coordinator/events.py",
    "coordinator/actions.py",
    "coordinator/restored.py",
    "coordinator/retention.py",
    "coordinator/causes.py",
    "coordinator/starting.py",
    "coordinator/epochs.py",
    "coordinator/epoch_book.py",
    "coordinator/announcing.py",
    "coordinator/ending.py",
    "coordinator/presence.py",
    "coordinator/lateness.py",
    "coordinator/staleness_ledger.py",
    "coordinator/staleness_status.py",
    "coordinator/partials.py",
    "coordinator/mismatch_status.py",
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
    "coordinator/activation.py",
    "coordinator/activation_offers.py",
    "coordinator/providers_wanted.py",
    "coordinator/activation_pool.py",
    "coordinator/activation_settings.py",
    "coordinator/worth.py",
    "peer/donor/install/units.py",
    "peer/donor/redaction.py",
    "peer/donor/check/findings.py",
    "peer/reachability/nat_kind.py",
    "coordinator/activation_status.py",
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
    "learner/objective.py",
    "learner/objective_config.py",
    "learner/factors.py",
    "learner/presets.py",
    "learner/aggregates.py",
    "learner/advantages.py",
    "learner/push.py",
    "learner/sampling_check.py",
    "learner/batch_check.py",
    "learner/epochs.py",
    "peer/relay/codec.py",
)
IMPURE = {
    *("asyncio", "aiohttp", "grpc", "time", "random", "secrets", "socket", "ssl", "sqlite3", "threading"),
    *("subprocess", "os", "pathlib", "shutil", "tempfile", "structlog", "logging"),
}
#: The objective is arithmetic on arrays: jax is its language, not I/O.
JAX_ALLOWED_IN = {"learner/objective.py", "learner/factors.py", "learner/presets.py"}


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
