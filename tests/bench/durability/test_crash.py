"""Test the comparison of clients' records with the ledger, and the load under which the coordinator is killed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bench.durability import load
from bench.fleet import fleet, peer
from bench.fleet.history import History, check
from bench.fleet.long_rollouts import LeasedSlot, LongRollouts, tokens_for, upload_of
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.stores.sqlite import Ledger
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import rollout_from_pb, rollout_to_pb
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import unpack_ids
from tests.coordinator.sample_status import sample_broadcast_turns, sample_status
from tests.coordinator.stored_work import batch, rollout, score


def served(*rollout_ids: int, reward: float = 0.5) -> list[pb.TrainingRollout]:
    return [pb.TrainingRollout(rollout_id=rollout_id, reward=reward) for rollout_id in rollout_ids]


@pytest.fixture
async def history(tmp_path: Path) -> History:
    """Return the history of a ledger with three acknowledged rollouts, two of them trained."""
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await score(ledger, 1, 2, 3)
    await ledger.record_batch(batch(0, 2, 1))
    await ledger.close()
    history = History(tmp_path / "history.jsonl")
    for number in (1, 2, 3):
        history.verdict(rollout_to_pb(rollout(number, group_id=number)), accepted=True, reason="")
    history.batch(0, served(2, 1))
    return history


def damaged(folder: Path, statement: str) -> Path:
    """Return the ledger after a change that its triggers would refuse."""
    path = folder / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    return path


def test_the_longest_block_is_read_from_the_metrics_that_the_coordinator_serves() -> None:
    metrics = CoordinatorMetrics(sample_status, sample_broadcast_turns)
    metrics.loop_blocks.observe(0.25, 1.0)
    metrics.loop_work.observe(0.03, 1.0)
    before = {"loop_block_ms_max": 10.0, "loop_work_ms_max": 40.0}
    assert load.longer(before, metrics.render().decode()) == {"loop_block_ms_max": 250.0, "loop_work_ms_max": 40.0}
    assert load.longer(before, "") == before


def test_the_longest_block_is_null_with_a_reason_where_the_run_is_too_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    measured = {"uploads_s": 1.0}
    monkeypatch.setattr(load, "measure", lambda profile, rng: dict(measured))
    monkeypatch.setattr(load, "alone", contextlib.nullcontext)
    assert load.run(parser.parse_args(["--seconds", "8"])).missing == tuple(load.BLOCK_FIGURES)
    assert "measure for 15 s or more" in capsys.readouterr().err
    measured |= dict.fromkeys(load.BLOCK_FIGURES, 0.3)
    assert load.run(parser.parse_args([])).missing == ()
    assert capsys.readouterr().err == ""


async def test_an_intact_ledger_passes_the_check(history: History, tmp_path: Path) -> None:
    history.verdict(rollout_to_pb(rollout(1, group_id=1)), accepted=True, reason="")
    history.verdict(rollout_to_pb(rollout(9)), accepted=False, reason="fenced")
    history.batch(0, served(2, 1))
    verdict = check(history, tmp_path / "store.sqlite")
    assert (verdict.acked, verdict.acked_lost, verdict.trained_twice, verdict.batches_changed) == (3, 0, 0, 0)
    assert (verdict.batches, verdict.accepted_in_ledger, verdict.unaccounted) == (1, 3, 0)
    assert (history.acked_again, history.refused["fenced"]) == (1, 1)
    assert len(history.path.read_text().splitlines()) == 7


@pytest.mark.parametrize("statement", ["DELETE FROM rollouts WHERE rollout_id = 3", "UPDATE rollouts SET body = x''"])
async def test_a_lost_or_changed_rollout_is_found(history: History, tmp_path: Path, statement: str) -> None:
    assert check(history, damaged(tmp_path, statement)).acked_lost == (1 if "DELETE" in statement else 3)


async def test_a_changed_batch_is_found(history: History, tmp_path: Path) -> None:
    history.batch(0, served(2, 1, reward=0.25))
    ledger = damaged(tmp_path, "DELETE FROM batch_rollouts WHERE rollout_id = 1")
    assert check(history, ledger).batches_changed == 2


async def test_a_rollout_in_two_batches_is_found(history: History, tmp_path: Path) -> None:
    history.batch(1, served(3, 1))
    assert check(history, tmp_path / "store.sqlite").trained_twice == 1


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    return parser.parse_args(given)


class StubOnce:
    """Cancels the first upload, as a channel does that closes with its session, and accepts the second."""

    def __init__(self) -> None:
        self.calls = 0

    async def UploadRollouts(self, uploads: Iterator[pb.RolloutUpload], **_: float) -> AsyncIterator[Any]:
        self.calls += 1
        if self.calls == 1:
            raise asyncio.CancelledError
        ((sent,),) = (upload.rollouts for upload in uploads)
        yield pb.UploadReply(verdicts=[pb.RolloutVerdict(lease_id=sent.lease_id, accepted=True)])


async def test_a_peer_repeats_an_upload_whose_session_ended_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "AGAIN_AFTER_S", (0.0, 0.0))
    history = History()
    one = peer.SyntheticPeer(cast(Any, None), peer.PeerShape(), history, lambda _: [], random.Random(1))
    one._stub = cast(Any, StubOnce())
    await asyncio.create_task(one._upload(rollout_to_pb(rollout(1))))
    assert len(history.acked) == 1


def test_given_options_override_the_profile() -> None:
    assert load.profile_of(arguments()) == load.PROFILES["gate"]
    profile = load.profile_of(arguments("--profile", "goal", "--peers", "7", "--no-kill"))
    assert (profile.peers, profile.kill, profile.uploads_s) == (7, False, 1000.0)


@pytest.mark.parametrize(("values", "share", "expected"), [((), 0.5, 0.0), ((0.2, 0.1, 0.3), 0.5, 200.0)])
def test_quantiles_are_in_milliseconds(values: Sequence[float], share: float, expected: float) -> None:
    assert load.quantile_ms(values, share) == pytest.approx(expected)


def test_bodies_have_their_size_and_the_right_answer() -> None:
    tokenizer = Tokenizer(pieces=("+1=",), characters=" 0123456789")
    slot = LeasedSlot("peer", 1, 2, 3, 4, 5, tuple(tokenizer.encode("41+1=")))
    tokens = tokens_for(20_000)
    rollouts = LongRollouts(tokenizer, tokens)
    body = rollouts.body(slot, 6, 0.5)
    assert len(body) == pytest.approx(20_000, rel=0.01)
    (sent,) = pb.RolloutUpload.FromString(upload_of(body)).rollouts
    rollout = rollout_from_pb(sent)
    assert tokenizer.decode(rollout.completion_token_ids).strip() == "42"
    assert (len(rollout.completion_token_ids), rollout.lease_id, rollout.oldest_version) == (tokens, 1, 6)
    again = rollouts.body(LeasedSlot("peer", 9, 2, 3, 4, 5, tuple(tokenizer.encode("7+1="))), 6, 0.5)
    (segment,) = pb.Rollout.FromString(again).segments
    assert tokenizer.decode(unpack_ids(segment.packed_ids)).strip() == "8"


def test_members_are_counted_from_the_metrics_that_the_coordinator_serves() -> None:
    metrics = CoordinatorMetrics(sample_status, sample_broadcast_turns)
    peers = [one for one in sample_status()["peers"] if one["role"] == "peer"]
    assert load.members(metrics.render().decode()) == len(peers) > 0
    assert load.members("") == 0


@pytest.mark.parametrize(
    ("gateways", "linked"),
    # test_gateways.py kills gateways too
    [(0, False), (0, True), pytest.param(1, False, marks=pytest.mark.slow)],
)
def test_a_tiny_fleet_is_served_and_survives_a_kill(
    monkeypatch: pytest.MonkeyPatch, gateways: int, linked: bool
) -> None:
    monkeypatch.setattr(fleet, "AGAIN_MOST_S", 0.3)
    profile = load.Profile(peers=20, heartbeats_s=20.0, uploads_s=40.0, seconds=1.0, kill=True)
    profile = replace(profile, gateways=gateways, linked=linked)
    figures = load.measure(profile, random.Random(0))
    assert figures["connected"] == 20
    assert figures["acked"] > 0
    assert figures["uploads_unanswered"] == 0
    assert (figures["lost"], figures["trained_twice"], figures["unaccounted"]) == (0, 0, 0)
    assert {"p99_ack_ms", "uploads_s", "heartbeats_s", "rss_mb", "cores", "back_s"} <= figures.keys()
    assert "loop_block_ms_max" not in figures, "the metric would show what happened before this second"
    assert bool(figures["gateways_ms_per_upload"]) == bool(gateways)
