from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from capacity.inputs.run_records import read_run
from coordinator.ledger.schema import migrate
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.proto import rollcast_pb2 as pb


def write_run(root: Path) -> Path:
    (root / "config").mkdir(parents=True)
    (root / "config" / "coordinator.toml").write_text("[run]\nstaleness_limit = 3\n[lease]\nprefetch_s = 10.0\n")
    segment = pb.Segment(version=2, peer_id="p", token_ids=[1, 2, 3])
    body = pb.Rollout(segments=[segment], generate_s=9.0).SerializeToString()
    manifests = [pb.Signed(payload=pb.Manifest(size_bytes=size).SerializeToString()) for size in (4000, 1000)]
    announcement = pb.VersionAnnouncement(manifests=manifests).SerializeToString()
    with closing(sqlite3.connect(root / "store.sqlite")) as ledger:
        migrate(ledger)
        ledger.execute("INSERT INTO groups VALUES (1, 'p', x'', '', '{}', NULL)")
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
            "INSERT INTO scores (rollout_id, reward, exact, error, scored_unix_s) VALUES (1, 1, 1, '', 105.0)"
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
        ledger.commit()
    line = json.dumps({"step": 2, "t_bcast_last_s": 0.5, "age_split": {"age_steps": 1.5}})
    (root / "metrics.jsonl").write_text(line + '\n{"step": 3, "t_b')
    return root


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path / "run"))
    (made,) = found.rollouts
    assert (made.peer_id, made.issued_s, made.received_s, made.scored_s) == ("p", 100.0, 104.0, 105.0)
    assert made.generate_s == 4.0, "a peer that says more than its attempt took is not believed"
    assert (made.begun_s, made.tokens, made.oldest_version) == (100.0, 3, 2)
    assert [(one.step, one.t_bcast_s, one.mean_age) for one in found.steps] == [(1, None, None), (2, 0.5, 1.5)]
    assert found.announced_s == {2: 105.5}
    assert found.update_bytes == 1000.0, "the smallest encoding"
    assert (found.run["staleness_limit"], found.lease["prefetch_s"]) == (3, 10.0)


def test_a_part_of_a_run_holds_what_happened_in_it(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path / "run"))
    assert [one.step for one in found.between(1, 2).steps] == [1]
    assert len(found.between(1, 3).rollouts) == 1, "received at 104.0, between the reports of the two steps"
    assert found.between(2, 3).rollouts == ()
    assert found.between(5, 9).steps == ()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="RC"):
        read_run(tmp_path)
