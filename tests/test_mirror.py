"""Tests mirror sources: a module without a test file of its name is named here with where it is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("rollcast", "coordinator", "peer", "learner", "capacity", "bench")

#: Constants and plain data: nothing to test by itself.
DATA = {
    *("rollcast/cli/options.py", "rollcast/cli/up_config.py", "rollcast/policy/config.py", "rollcast/wire/ids.py"),
    *(
        "rollcast/wire/link_receiver.py",
        "rollcast/wire/limits.py",
        "coordinator/access_rows.py",
        "coordinator/actions.py",
        "coordinator/activation_status.py",
        "coordinator/capacity_config.py",
        "capacity/replan_events.py",
        "coordinator/events.py",
        "coordinator/restored.py",
        "peer/config.py",
    ),
    "capacity/units.py",
    *("peer/relay_actions.py", "peer/relay_events.py", "peer/worker_events.py"),
    "peer/donor/readings.py",
    *("learner/config.py", "peer/engines/base.py"),
}

#: Parts that only make sense together, and what tests them together.
TESTED_IN = {
    "peer/donor/daemon.py": "tests/peer/test_service.py",
    "capacity/conduct.py": "tests/capacity/test_prediction.py",
    "capacity/fleet_model_parts.py": "tests/capacity/test_fleet_model.py",
    "bench/prediction_grid.py": "tests/bench/test_prediction.py",
    "bench/prediction_local.py": "tests/bench/test_prediction.py",
    "capacity/plans.py": "tests/capacity/test_planner.py",
    "capacity/matrix.py": "tests/capacity/test_linear.py",
    "capacity/rounding.py": "tests/capacity/test_swaps.py",
    "capacity/infeasible.py": "tests/capacity/test_remedies.py",
    "capacity/written_plan.py": "tests/capacity/test_planner.py",
    "capacity/explaining.py": "tests/capacity/test_questions.py",
    "capacity/single_changes.py": "tests/capacity/test_questions.py",
    "bench/capacity_pools.py": "tests/bench/test_capacity.py",
    "rollcast/sim/chunked.py": "tests/sim/test_simulation.py",
    "rollcast/sim/control_link.py": "tests/sim/test_simulation.py",
    "rollcast/sim/coordinator_node.py": "tests/sim/test_simulation.py",
    "rollcast/sim/engine.py": "tests/sim/test_simulation.py",
    "rollcast/sim/faults.py": "tests/sim/test_simulation.py",
    "rollcast/sim/fleet.py": "tests/sim/test_simulation.py",
    "rollcast/sim/ground.py": "tests/sim/test_simulation.py",
    "rollcast/sim/hostile.py": "tests/sim/test_simulation.py",
    "rollcast/sim/judge_ledger.py": "tests/sim/test_mutants.py",
    "rollcast/sim/learner_node.py": "tests/sim/test_simulation.py",
    "rollcast/sim/mutants/coordinator.py": "tests/sim/test_mutants.py",
    "rollcast/sim/mutants/gate.py": "tests/sim/test_mutants.py",
    "rollcast/sim/mutants/planting.py": "tests/sim/test_mutants.py",
    "rollcast/sim/mutants/processes.py": "tests/sim/test_mutants.py",
    "rollcast/sim/operator.py": "tests/sim/test_simulation.py",
    "rollcast/sim/oracle.py": "tests/sim/test_mutants.py",
    "rollcast/sim/origin_node.py": "tests/sim/test_simulation.py",
    "rollcast/sim/peer_node.py": "tests/sim/test_simulation.py",
    "rollcast/sim/ports.py": "tests/peer/test_relay_network.py",
    "rollcast/sim/relay.py": "tests/sim/test_simulation.py",
    "rollcast/sim/relay_disk.py": "tests/sim/test_simulation.py",
    "rollcast/sim/relay_links.py": "tests/sim/test_simulation.py",
    "rollcast/sim/run_settings.py": "tests/sim/test_simulation.py",
    "rollcast/sim/scenario.py": "tests/sim/test_simulation.py",
    "rollcast/sim/sessions.py": "tests/sim/test_simulation.py",
    "rollcast/sim/settings.py": "tests/sim/test_simulation.py",
    "rollcast/sim/tables.py": "tests/sim/test_store.py",
    "rollcast/sim/trace.py": "tests/sim/test_simulation.py",
    "rollcast/sim/verdicts.py": "tests/sim/test_mutants.py",
    "rollcast/sim/verifiers.py": "tests/sim/test_simulation.py",
    "rollcast/sim/versions.py": "tests/sim/test_simulation.py",
    "coordinator/curation/written.py": "tests/cli/test_curate.py",
    "rollcast/cli/curate_options.py": "tests/cli/test_curate.py",
    "rollcast/cli/backup.py": "tests/coordinator/test_backup.py",
    "rollcast/cli/capacity_diff.py": "tests/cli/test_capacity_replan.py",
    "rollcast/cli/capacity_follow.py": "tests/cli/test_capacity_replan.py",
    "rollcast/cli/capacity_measured.py": "tests/cli/test_capacity_inputs.py",
    "rollcast/cli/capacity_output.py": "tests/cli/test_capacity_plan.py",
    "rollcast/cli/capacity_schema.py": "tests/cli/test_capacity_offers.py",
    "capacity/explain_report.py": "tests/cli/test_capacity_explain.py",
    "capacity/forecast_report.py": "tests/cli/test_capacity_plan.py",
    "capacity/offer_report.py": "tests/cli/test_capacity_offers.py",
    "capacity/pool_columns.py": "tests/capacity/test_pool_checks.py",
    "capacity/pool_rows.py": "tests/capacity/test_pool_checks.py",
    "capacity/reference_sheets.py": "tests/cli/test_capacity_offers.py",
    "capacity/replan_report.py": "tests/cli/test_capacity_replan.py",
    "capacity/scenario_assumptions.py": "tests/capacity/test_scenario.py",
    "capacity/calibrated_pool.py": "tests/cli/test_capacity_calibrate.py",
    "rollcast/cli/configuration.py": "tests/cli/test_main.py",
    "rollcast/cli/evaluate.py": "tests/e2e/test_run.py",
    "rollcast/cli/run_tools.py": "tests/cli/test_samples.py",
    "rollcast/cli/identity.py": "tests/cli/test_main.py",
    "rollcast/cli/roles.py": "tests/cli/test_main.py",
    "rollcast/cli/up.py": "tests/e2e/test_run.py",
    "rollcast/cli/watch.py": "tests/e2e/test_run.py",
    "peer/engines/torch_model.py": "tests/peer/test_torch_engine.py",
    "peer/engines/torch_rows.py": "tests/peer/test_torch_engine.py",
    "rollcast/policy/drawing.py": "tests/policy/test_sampler.py",
    "rollcast/policy/compilation.py": "tests/peer/test_jax_engine.py",
    "rollcast/wire/link_dialler.py": "tests/peer/test_direct_transport.py",
    "rollcast/wire/link_opening.py": "tests/peer/test_direct_transport.py",
    "rollcast/wire/taken_tls.py": "tests/wire/test_link_stream.py",
    "rollcast/runtime/metrics.py": "tests/coordinator/test_metrics.py",
    "rollcast/runtime/version.py": "tests/cli/test_main.py",
    "capacity/fleet_accounts.py": "tests/capacity/test_fleet.py",
    "capacity/fleet_events.py": "tests/capacity/test_fleet.py",
    "capacity/fleet_state.py": "tests/capacity/test_fleet.py",
    "capacity/providers/config.py": "tests/capacity/providers/test_local.py",
    "capacity/providers/hosts.py": "tests/capacity/providers/test_local.py",
    "capacity/providers/making.py": "tests/coordinator/test_providers.py",
    "capacity/providers/launch.py": "tests/capacity/providers/test_host_agent.py",
    "coordinator/assembly.py": "tests/coordinator/test_service.py",
    "coordinator/background.py": "tests/coordinator/test_service.py",
    "coordinator/loading.py": "tests/coordinator/test_problems.py",
    "coordinator/sandbox/child.py": "tests/coordinator/sandbox/test_runner.py",
    "coordinator/ledger_compact.py": "tests/coordinator/test_store.py",
    "coordinator/ledger_facts.py": "tests/coordinator/test_store.py",
    "coordinator/ledger_sql.py": "tests/coordinator/test_store.py",
    "coordinator/ledger_thread.py": "tests/coordinator/test_ledger.py",
    "coordinator/problems.py": "tests/coordinator/test_service.py",
    "coordinator/rpc_access.py": "tests/coordinator/test_rpc.py",
    "coordinator/rpc_learner.py": "tests/coordinator/test_rpc.py",
    "coordinator/rpc_peers.py": "tests/coordinator/test_rpc.py",
    "coordinator/announcing.py": "tests/coordinator/test_core.py",
    "coordinator/ending.py": "tests/coordinator/test_core.py",
    "coordinator/presence.py": "tests/coordinator/test_core.py",
    "coordinator/activation_pool.py": "tests/coordinator/test_activation.py",
    "coordinator/peer_status.py": "tests/coordinator/test_status.py",
    "coordinator/peer_sending.py": "tests/coordinator/test_service.py",
    "coordinator/shell.py": "tests/coordinator/test_service.py",
    "coordinator/verifier_process.py": "tests/coordinator/test_verifier_pool.py",
    "coordinator/verifier_worker.py": "tests/coordinator/test_verifier_pool.py",
    "peer/link_server.py": "tests/peer/test_direct_transport.py",
    "peer/relay_state.py": "tests/peer/test_relay_core.py",
    "peer/transport.py": "tests/peer/transport_conformance.py",
    "learner/lead.py": "tests/learner/test_processes.py",
    "learner/loop.py": "tests/learner/test_service.py",
    "bench/__main__.py": "tests/bench/test_main.py",
    "bench/resume_learner.py": "tests/bench/test_resume.py",
    "bench/churn.py": "tests/bench/test_main.py",
    "bench/demo.py": "tests/bench/test_main.py",
    "bench/donor/capped_links.py": "tests/bench/test_caps.py",
    "bench/donor/pause.py": "tests/bench/test_donor_pause.py",
    "bench/programs/donor_side.py": "tests/bench/test_startup.py",
    "bench/demonstration.py": "tests/bench/test_staleness.py",
    "bench/learner_step.py": "tests/bench/test_learner.py",
    "bench/programs/publishing_learner.py": "tests/bench/test_learner.py",
    "bench/programs/sharded_publisher.py": "tests/learner/test_pieces.py",
    "bench/machine.py": "tests/bench/test_main.py",
    "bench/control/apsw_connection.py": "tests/bench/test_powerloss.py",
    "bench/control/fleet.py": "tests/bench/test_load.py",
    "bench/control/joining.py": "tests/bench/test_load.py",
    "bench/control/long_rollouts.py": "tests/bench/test_load.py",
    "bench/control/watch.py": "tests/bench/test_load.py",
    "bench/control/forgetful_disk.py": "tests/bench/test_powerloss.py",
    "bench/control/ledger_load.py": "tests/bench/test_powerloss.py",
    "bench/control/aftermath.py": "tests/bench/test_chaos.py",
    "bench/control/history.py": "tests/bench/test_crash.py",
    "bench/control/learner.py": "tests/bench/test_crash.py",
    "bench/control/peer.py": "tests/bench/test_crash.py",
    "bench/control/process.py": "tests/bench/test_crash.py",
    "bench/delta_network.py": "tests/bench/test_delta.py",
    "bench/materialise.py": "tests/bench/test_delta.py",
    "bench/updates.py": "tests/bench/test_delta.py",
    "bench/programs/throttled.py": "tests/bench/test_prediction.py",
    "bench/programs/idle_peer.py": "tests/bench/test_broadcast.py",
    "bench/programs/journal_peer.py": "tests/bench/test_chaos.py",
    "bench/programs/libtorrent_node.py": "tests/bench/test_broadcast.py",
    "bench/programs/noise_learner.py": "tests/bench/test_broadcast.py",
    "bench/programs/shardcast_node.py": "tests/bench/test_broadcast.py",
    "bench/programs/tracker.py": "tests/bench/test_broadcast.py",
    "bench/systems/aria2.py": "tests/bench/test_broadcast.py",
    "bench/systems/base.py": "tests/bench/test_broadcast.py",
    "bench/systems/http_star.py": "tests/bench/test_broadcast.py",
    "bench/systems/libtorrent.py": "tests/bench/test_broadcast.py",
    "bench/systems/libtorrent_tuned.py": "tests/bench/test_broadcast.py",
    "bench/systems/rollcast.py": "tests/bench/test_broadcast.py",
    "bench/systems/rollcast_daemons.py": "tests/bench/test_broadcast.py",
    "bench/systems/shardcast.py": "tests/bench/test_broadcast.py",
    "bench/wan/build.py": "tests/bench/test_wan.py",
    "bench/wan/meter.py": "tests/bench/test_wan.py",
    "bench/wan/network.py": "tests/bench/test_wan.py",
    "bench/wan/scenarios.py": "tests/bench/test_wan.py",
}


def sources() -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__init__.py" and "_pb2" not in path.name
    ]


@pytest.mark.parametrize("source", sources())
def test_every_source_has_its_test(source: str) -> None:
    path = Path(source.removeprefix("rollcast/"))
    mirrors = {ROOT / "tests" / folder / f"test_{path.name}" for folder in (path.parent, path.parts[0])}
    if source in TESTED_IN:
        assert (ROOT / TESTED_IN[source]).exists()
    else:
        assert source in DATA or any(mirror.exists() for mirror in mirrors), f"{source} has no test"


def test_exceptions_name_sources_that_exist() -> None:
    assert {*DATA, *TESTED_IN} <= set(sources())
