"""Test that figures of a finished run, read from its folder, correct the formulas' assumptions."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.inputs.calibration import Links, calibrate, fitted, fitted_median
from capacity.inputs.run_records import LearnerStep, MadeRollout, RunRecords, read_run
from capacity.predict.prediction import predict
from coordinator.stores.sqlite_schema import migrate
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_ids import pack_ids

RUN = {"groups_per_step": 4, "samples_per_group": 2, "staleness_limit": 4, "publish_every_steps": 1}

LEASE = {"lead_margin_steps": 0.5, "prefetch_batches": 2.0, "prefetch_s": 10.0, "at_version_swap": "finish"}

T_TRAIN_S, BATCH_S, AT_ONCE = 3.0, 2.0, 2


def records(peers: int = 2, steps: int = 40, wait_s: float = 1.0) -> RunRecords:
    """Return records of peers that generate two rollouts every two seconds and a learner that waits a second a step."""
    step_s = T_TRAIN_S + wait_s
    made = [
        MadeRollout(f"p{peer}", begin - 0.5, begin + BATCH_S, BATCH_S, 8 + slot, int(begin / step_s), begin + 2.1)
        for peer in range(peers)
        for batch in range(int(steps * step_s / BATCH_S))
        for slot in range(AT_ONCE)
        if (begin := batch * BATCH_S) >= 0.0
    ]
    figures = {"step_s": step_s, "wait_s": wait_s, "train_s": 2.5, "behaviour_s": 0.2, "compile_s": 0.0}
    learner = [LearnerStep(step, step * step_s, figures, 0.7, 2.0) for step in range(1, steps + 1)]
    announced = {step: step * step_s + 0.1 for step in range(1, steps + 1)}
    return RunRecords(RUN, LEASE, tuple(sorted(made, key=lambda one: one.received_s)), tuple(learner), announced, 1e6)


def test_what_was_recorded_is_found_again() -> None:
    found = calibrate(records().between(5, 40))
    assert [(peer.peer_id, peer.concurrency) for peer in found.peers] == [("p0", AT_ONCE), ("p1", AT_ONCE)]
    assert found.peers[0].speed.rollouts_per_second == pytest.approx(AT_ONCE / BATCH_S, rel=0.02)
    assert found.t_train_s.value == pytest.approx(T_TRAIN_S)
    assert found.t_bcast_s.value == pytest.approx(0.7)
    assert found.t_publish_s.value == pytest.approx(0.1)
    assert found.t_score_s.value == pytest.approx(0.1)
    assert found.busy_share == pytest.approx(2.7 / 3.0)
    assert found.utilisation == pytest.approx(2.7 / 4.0)
    assert found.whole_batches, "rollouts of different lengths came together"
    assert found.t_train_s.count == 35


def test_late_uploads_are_not_counted_as_rollouts_at_once() -> None:
    """Two places, each refilled as it ends; every tenth upload of either is late, as beside another program's load."""
    late_s = 1.2
    made = [
        MadeRollout("p0", end - 3.0, end + late_s * (number % 10 == 0), BATCH_S, 8, 0, None)
        for place in range(AT_ONCE)
        for number in range(60)
        if (end := 3.0 + number * BATCH_S + place * BATCH_S / AT_ONCE * 1.7) > 0.0
    ]
    found = calibrate(replace(records(), rollouts=tuple(sorted(made, key=lambda one: one.received_s))))
    assert [peer.concurrency for peer in found.peers] == [AT_ONCE]


def test_it_becomes_a_demand_and_workers() -> None:
    found = calibrate(records())
    demand, conduct = found.with_bcast(None, 2)
    assert (demand.rollouts_per_step, demand.staleness_limit, demand.t_train_s) == (8, 4, pytest.approx(3.0))
    assert (conduct.samples_per_group, conduct.prefetch_s, conduct.at_version_swap) == (2, 10.0, "finish")
    predicted = predict(demand, found.workers(), conduct)
    assert predicted.t_bcast_s == pytest.approx(0.7, rel=0.01)
    # Two peers at one rollout a second each: 6 of 8 in 3 s.
    assert predicted.utilisation == pytest.approx(0.75, rel=0.06)


def test_known_links_carry_the_overhead_over_to_another_set() -> None:
    found, links = calibrate(records()), Links(source=2e6, upload=1e6)
    assert found.overhead(links, 2) == pytest.approx(0.7 / links.bound_s(1e6, 2))
    demand, conduct = found.with_bcast(links, 2)
    assert predict(demand, found.workers(links), conduct).t_bcast_s == pytest.approx(0.7, rel=0.01)
    more = predict(demand, found.workers(links) * 3, conduct)
    assert more.t_bcast_s == pytest.approx(0.7 * links.bound_s(1e6, 6) / links.bound_s(1e6, 2), rel=0.01)


def test_nothing_can_be_fitted_without_records() -> None:
    with pytest.raises(ValueError, match="needs learner steps"):
        calibrate(records().between(100, 200))


def test_a_fit_has_an_uncertainty() -> None:
    mean = fitted([1.0, 2.0, 3.0])
    assert (mean.value, mean.count) == (2.0, 3)
    assert mean.error == pytest.approx(1.0 / math.sqrt(3.0))
    assert mean.relative_uncertainty == pytest.approx(mean.error)
    assert fitted([]).relative_uncertainty == math.inf
    assert fitted_median([1.0, 2.0, 300.0]).value == 2.0


def write_run(root: Path, generate_s: float = 9.0) -> Path:
    (root / "config").mkdir(parents=True)
    (root / "config" / "coordinator.toml").write_text("[run]\nstaleness_limit = 3\n[lease]\nprefetch_s = 10.0\n")
    segment = pb.Segment(version=2, peer_id="p", packed_ids=pack_ids([1, 2, 3]))
    body = pb.Rollout(segments=[segment], generate_s=generate_s).SerializeToString()
    manifests = [pb.Signed(payload=pb.Manifest(size_bytes=size).SerializeToString()) for size in (4000, 1000)]
    announcement = pb.VersionAnnouncement(manifests=manifests).SerializeToString()
    with closing(sqlite3.connect(root / "store.sqlite")) as ledger:
        migrate(ledger)
        ledger.execute("INSERT INTO groups VALUES (1, 'p', x'', '', '{}', NULL, '', 1)")
        ledger.execute(
            "INSERT INTO attempts (lease_id, sample_index, fencing_token, group_id, seed, peer_id, issued_unix_s) "
            "VALUES (1, 0, 1, 1, 7, 'p', 100.0)"
        )
        ledger.execute(
            "INSERT INTO rollouts (rollout_id, lease_id, sample_index, peer_id, body, oldest_version, newest_version, "
            "received_unix_s) VALUES (1, 1, 0, 'p', ?, 2, 2, 104.0)",
            (body,),
        )
        ledger.execute(
            "INSERT INTO scores (rollout_id, reward, exact, detail, scored_unix_s) VALUES (1, 1, 1, '', 105.0)"
        )
        for step in (1, 2):
            figures = json.dumps({"step_s": 2.0})
            ledger.execute(
                "INSERT INTO steps (step, reported_unix_s, figures) VALUES (?, ?, ?)", (step, 103.0 + step, figures)
            )
        ledger.execute(
            "INSERT INTO versions (epoch, version, announcement, announced_unix_s) VALUES (0, 2, ?, 105.5)",
            (announcement,),
        )
        for detail in ("cellar as peer", "garage as office as peer"):
            ledger.execute(
                "INSERT INTO events (at_unix_s, kind, subject, detail, cause) VALUES (1, 'peer_joined', 'p', ?, 'p')",
                (detail,),
            )
        ledger.commit()
    line = json.dumps({"step": 2, "t_bcast_last_s": 0.5, "age_split": {"age_steps": 1.5}})
    (root / "metrics.jsonl").write_text(line + '\n{"step": 3, "t_b')
    return root


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path / "run"))
    (made,) = found.rollouts
    assert (made.peer_id, made.issued_s, made.received_s, made.scored_s) == ("p", 100.0, 104.0, 105.0)
    assert made.generate_s == 4.0, "a peer that reports more than its attempt took is not trusted"
    assert (made.begun_s, made.tokens, made.oldest_version) == (100.0, 3, 2)
    assert [(one.step, one.t_bcast_s, one.mean_age) for one in found.steps] == [(1, None, None), (2, 0.5, 1.5)]
    assert found.announced_s == {2: 105.5}
    assert found.update_bytes == 1000.0, "the smallest encoding"
    assert found.names == {"p": "garage as office"}
    assert (found.run["staleness_limit"], found.lease["prefetch_s"]) == (3, 10.0)


def test_an_episode_takes_from_its_lease_to_its_end(tmp_path: Path) -> None:
    """Peers report the times of turns, which the record of a whole episode lacks."""
    (made,) = read_run(write_run(tmp_path / "run", generate_s=0.0)).rollouts
    assert made.generate_s == 4.0


def test_a_part_of_a_run_holds_what_happened_in_it(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path / "run"))
    assert [one.step for one in found.between(1, 2).steps] == [1]
    assert len(found.between(1, 3).rollouts) == 1, "received at 104.0, between the reports of the two steps"
    assert found.between(2, 3).rollouts == ()
    assert found.between(5, 9).steps == ()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="RC"):
        read_run(tmp_path)
