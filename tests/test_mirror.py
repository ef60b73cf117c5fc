"""Test that tests mirror the sources: each folder has a folder of tests, which reach each of its modules.

A test module has one subject; several modules may share a subject. A module counts as reached if a test module of its
folder, or of the folders above it in the same room, imports it: directly, through a helper under ``tests/``, or through
a module of the room. A room is a folder of a role (``peer/relay``, ``coordinator/core``); the simulator and the
benchmarks are one room each, because their folders make sense only together. Modules that run in a process of their own
or are loaded by name are listed with the test that runs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path, PurePosixPath

from bench.structure import import_graph

ROOT = Path(__file__).parents[1]

#: Rooms that reach over all their folders.
ONE_ROOM = (PurePosixPath("rollcast/sim"), PurePosixPath("bench"))

#: Module -> the test that runs it in a process of its own, or by the name of a command.
RUN_BY = {
    "bench/broadcast/transports_end.py": "tests/bench/broadcast/test_transports.py",
    "bench/durability/churn.py": "tests/bench/test_main.py",
    "bench/durability/resume_learner.py": "tests/bench/durability/test_resume.py",
    "bench/stores/apsw_connection.py": "tests/bench/durability/test_powerloss.py",
    "bench/learner/demo.py": "tests/bench/test_main.py",
    "bench/people/capped_links.py": "tests/bench/people/test_caps.py",
    "bench/people/caps.py": "tests/bench/people/test_caps.py",
    "bench/people/dashboard_fleet.py": "tests/bench/people/test_dashboard.py",
    "bench/people/startup.py": "tests/bench/people/test_newcomer.py",
    "bench/planner/capacity_cli.py": "tests/bench/planner/test_capacity.py",
    "bench/programs/donor_side.py": "tests/bench/people/test_newcomer.py",
    "bench/programs/idle_peer.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/programs/libtorrent_node.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/programs/publishing_learner.py": "tests/bench/learner/test_learner.py",
    "bench/programs/shardcast_node.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/programs/sharded_publisher.py": "tests/learner/training/test_mesh.py",
    "bench/programs/steady_learner.py": "tests/bench/longrun/test_hour.py",
    "bench/programs/throttled.py": "tests/bench/prediction/test_prediction.py",
    "bench/programs/tracker.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/reach/hole_puncher.py": "tests/bench/reach/test_holes.py",
    "bench/reach/libp2p_puncher.py": "tests/bench/reach/test_holes.py",
    "bench/reach/punching_peer.py": "tests/bench/reach/test_holes.py",
    "bench/reach/relayed_end.py": "tests/bench/reach/test_relayed.py",
    "bench/systems/http_star.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/systems/libtorrent_tuned.py": "tests/bench/broadcast/test_broadcast.py",
    "bench/systems/shardcast.py": "tests/bench/broadcast/test_broadcast.py",
    "capacity/reports/calibrated_pool.py": "tests/cli/capacity/test_inputs.py",
    "capacity/reports/explanation.py": "tests/cli/capacity/test_plan.py",
    "capacity/reports/offers.py": "tests/cli/capacity/test_inputs.py",
    "capacity/reports/reference.py": "tests/cli/capacity/test_inputs.py",
    "capacity/reports/replan.py": "tests/cli/capacity/test_live.py",
    "coordinator/environments/inline_harness.py": "tests/coordinator/environments/test_verifiers_package.py",
    "coordinator/environments/verifiers_package.py": "tests/coordinator/environments/test_verifiers_package.py",
    "coordinator/environments/worker.py": "tests/coordinator/environments/test_pool.py",
    "coordinator/ledger/sql_facts.py": "tests/coordinator/stores/test_sqlite.py",
    "coordinator/ledger/sql_store.py": "tests/coordinator/stores/test_sqlite.py",
    "coordinator/tasks/curation/output.py": "tests/cli/data/test_curate.py",
    "coordinator/tasks/sandbox/child.py": "tests/coordinator/tasks/sandbox/test_runner.py",
    "coordinator/workers/child.py": "tests/coordinator/verifiers/test_pool.py",
    "coordinator/workers/line_process.py": "tests/coordinator/verifiers/test_pool.py",
    "coordinator/verifiers/worker.py": "tests/coordinator/verifiers/test_pool.py",
    "peer/donor/daemon.py": "tests/peer/test_service.py",
    "peer/engines/vllm/server/completions.py": "tests/peer/engines/vllm/test_conformance.py",
    "peer/engines/vllm/server/lifetime.py": "tests/peer/engines/vllm/test_engine.py",
    "peer/engines/vllm/server/main.py": "tests/peer/engines/vllm/test_conformance.py",
    "peer/engines/vllm/server/sampling.py": "tests/peer/engines/vllm/test_conformance.py",
    "peer/engines/vllm/server/weights.py": "tests/peer/engines/vllm/test_conformance.py",
    "peer/links/neighbours.py": "tests/peer/relay/core/test_core.py",
    "rollcast/cli/capacity/diff.py": "tests/cli/capacity/test_live.py",
    "rollcast/cli/capacity/explain.py": "tests/cli/capacity/test_plan.py",
    "rollcast/cli/capacity/offers.py": "tests/cli/capacity/test_inputs.py",
    "rollcast/cli/capacity/replan.py": "tests/cli/capacity/test_live.py",
    "rollcast/cli/capacity/validate.py": "tests/cli/capacity/test_validate.py",
    "rollcast/cli/capacity/what_if.py": "tests/cli/capacity/test_plan.py",
    "rollcast/cli/data/curate.py": "tests/cli/data/test_curate.py",
    "rollcast/cli/data/curate_options.py": "tests/cli/data/test_curate.py",
    "rollcast/cli/peer/app.py": "tests/cli/peer/test_app.py",
    "rollcast/cli/peer/bugreport.py": "tests/cli/peer/test_join.py",
    "rollcast/cli/peer/leave.py": "tests/cli/peer/test_join.py",
    "rollcast/cli/run/backup.py": "tests/coordinator/recovery/test_backup.py",
    "rollcast/cli/run/export.py": "tests/cli/run/test_export.py",
    "rollcast/runtime/metrics.py": "tests/coordinator/metrics/test_metrics.py",
    "rollcast/runtime/version.py": "tests/cli/test_main.py",
    "rollcast/wire/links/dialler.py": "tests/peer/links/test_direct.py",
}


def mirror_of(path: PurePosixPath) -> PurePosixPath:
    """Return the folder of tests that mirrors a module's folder: ``rollcast/wire/links`` -> ``tests/wire/links``."""
    folder = path.parent
    return PurePosixPath("tests", *(folder.parts[1:] if folder.parts[0] == "rollcast" else folder.parts))


def room_of(path: PurePosixPath) -> PurePosixPath:
    """Return the room of a module: a folder of its role, or the role itself for a door."""
    depth = 3 if path.parts[0] == "rollcast" else 2
    room = PurePosixPath(*path.parent.parts[:depth])
    return next((whole for whole in ONE_ROOM if room.is_relative_to(whole)), room)


def reached_by(
    tests: Set[str], room: PurePosixPath, imports: Mapping[str, Set[str]], paths: Mapping[str, PurePosixPath]
) -> set[str]:
    """Return the modules that these test modules import, through helpers and modules of the room."""
    found, waiting = set(tests), list(tests)
    while waiting:
        for module in imports[waiting.pop()] - found:
            found.add(module)
            if paths[module].parts[0] == "tests" or room_of(paths[module]) == room:
                waiting.append(module)
    return found


@cache
def unreached_modules() -> frozenset[str]:
    paths = import_graph.find_modules(ROOT, (*import_graph.PACKAGES, "tests"))
    imports: dict[str, set[str]] = defaultdict(set)
    for importing, imported in import_graph.find_imports(ROOT, paths):
        imports[importing].add(imported)
    reached: dict[PurePosixPath, set[str]] = {}
    unreached = set()
    for name, path in paths.items():
        if path.name == "__init__.py" or path.parts[0] == "tests":
            continue
        if path.parent not in reached:
            reached[path.parent] = reached_by(mirror_tests_of(path, paths), room_of(path), imports, paths)
        if name not in reached[path.parent]:
            unreached.add(str(path))
    return frozenset(unreached)


def mirror_tests_of(path: PurePosixPath, paths: Mapping[str, PurePosixPath]) -> set[str]:
    """Return the test modules of a module's folder, and of the folders above it in its room."""
    own, room = mirror_of(path), mirror_of(room_of(path) / path.name)
    tests = {name: test for name, test in paths.items() if test.parts[0] == "tests" and test.name.startswith("test_")}
    if room == mirror_of(PurePosixPath("bench/any.py")):
        return {name for name, test in tests.items() if test.is_relative_to(room)}
    return {name for name, test in tests.items() if own.is_relative_to(test.parent) and test.is_relative_to(room)}


def test_every_module_is_reached_by_the_tests_of_its_folder() -> None:
    assert unreached_modules() - set(RUN_BY) == set()


def test_exceptions_name_modules_that_need_one_and_tests_that_exist() -> None:
    assert set(RUN_BY) <= unreached_modules()
    assert [test for test in set(RUN_BY.values()) if not (ROOT / test).exists()] == []
