"""A tiny fleet against a real coordinator, and the bodies that it sends."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import pytest

from bench.durability import load
from bench.fleet import fleet
from bench.fleet.long_rollouts import LeasedSlot, LongRollouts, tokens_for, upload_of
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import rollout_from_pb
from rollcast.wire.text.tokenizer import Tokenizer


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    return parser.parse_args(given)


def test_what_is_given_replaces_the_profile() -> None:
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
    assert tokenizer.decode(segment.token_ids).strip() == "8"


def test_a_tiny_fleet_is_served_and_survives_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AGAIN_MOST_S", 0.3)
    profile = load.Profile(peers=20, heartbeats_s=20.0, uploads_s=40.0, seconds=1.0, kill=True)
    figures = load.measure(profile, random.Random(0))
    assert figures["connected"] == 20
    assert figures["acked"] > 0
    assert figures["uploads_unanswered"] == 0
    assert (figures["lost"], figures["trained_twice"], figures["unaccounted"]) == (0, 0, 0)
    assert {"p99_ack_ms", "uploads_s", "heartbeats_s", "rss_mb", "cores", "back_s"} <= figures.keys()
