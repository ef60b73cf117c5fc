from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pytest

from bench.broadcast import delta, delta_network, materialise
from bench.programs.noise_learner import LayerStack, noise
from bench.systems.base import Broadcast
from bench.wan.meter import Cost
from bench.wan.scenarios import SCENARIOS, fluid_bound
from learner.publishing.encodings import Encoded, encode
from rollcast.policy.snapshot import Snapshot
from rollcast.wire.ids import EncodingId, Epoch, RunId, Version
from rollcast.wire.versions.records import PREVIOUS_ID, VersionRecord


def test_one_small_layer_gives_every_figure_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # Few steps; the state is so small that lists count.
    monkeypatch.setattr(materialise, "written_ratio", partial(materialise.written_ratio, 1 << 20, 0.2))
    parser = argparse.ArgumentParser()
    delta.add_arguments(parser)
    figures = delta.run(parser.parse_args(["--mib", "1"])).figures
    for number in ("1e-6", "3e-6", "1e-5"):
        assert 0 < figures[f"fp8_{number}"] < figures[f"bf16_{number}"] < figures[f"bf16_{number}_x8"] < 1
    assert figures["bf16_1e-6"] < figures["bf16_3e-6"] < figures["bf16_1e-5"] < figures["zstd_alone"]
    assert figures["encode_mb_s"] > 0
    assert figures["decode_mb_s"] > 0
    assert figures["materialise_mb_s"] > 0
    assert figures["in_memory_mb_s"] > 0
    assert 1 < figures["written_ratio"] < 5
    assert 0 <= figures["materialise_left_share"] <= 1


def frozen(stack: LayerStack, path: Path) -> Snapshot:
    path.touch()
    write = stack.begin_freeze(path, Version(0))
    write()
    return Snapshot(write.tensors, path.read_bytes())


def test_the_learner_of_the_benchmark_makes_noise_weights_and_updates(tmp_path: Path) -> None:
    assert noise(1000).state_bytes != noise(1000).state_bytes
    stack = LayerStack(14 << 20)
    first = frozen(stack, tmp_path / "first")
    stack.step()
    second = frozen(stack, tmp_path / "second")
    assert len(first.state_bytes) >= 14 << 20
    assert first.tensors == second.tensors
    bases = {PREVIOUS_ID: Version(0)}

    def encodings(after: Snapshot) -> dict[EncodingId, Encoded]:
        record = VersionRecord(RunId("run"), Epoch(0), Version(0), b"", b"", 0, first.tensors, "{}")
        state = record, first.state_bytes
        return encode(after, bases, lambda *_: state, chunk_size_bytes=0, keyframe_chunk_bytes=32 << 10)[1]

    assert len(encodings(second)[PREVIOUS_ID].data) < 0.02 * len(first.state_bytes)
    assert PREVIOUS_ID not in encodings(frozen(LayerStack(14 << 20), tmp_path / "other"))


def a_broadcast(seconds: float, sent_bytes: int, late_ms: float = 1.0) -> Broadcast:
    cost = Cost(sent_bytes, sent_bytes, 0, 1.0, 0.5, 4.0, 0.5, late_ms)
    written = {"learner": 50 * sent_bytes, "origin": sent_bytes, "peer-1": 2 * sent_bytes}
    return Broadcast(
        {1: seconds / 2, 2: seconds},
        cost,
        origin_s=seconds,
        from_freeze_s=2 * seconds,
        encoding_bytes=(50 * sent_bytes, sent_bytes),
        written_bytes=written,
    )


def test_receivers_are_taken_evenly() -> None:
    nodes = SCENARIOS["het50"]
    assert delta_network.some_of(nodes, 0) == nodes
    few = delta_network.some_of(nodes, 4)
    assert [node.up_mbit_s for node in few] == [50, 50, 50, 12.5, 12.5]


def test_figures_of_pairs_are_medians_of_ratios() -> None:
    pairs = [
        delta_network.Pair(
            a_broadcast(seconds, 1000), a_broadcast(seconds / 10, 20), a_broadcast(seconds / divisor, 20)
        )
        for seconds, divisor in ((50.0, 50), (60.0, 40), (55.0, 45))
    ]
    figures = delta_network.figures(pairs, 1, fluid_bound(1 << 20, SCENARIOS["het50"]))
    assert figures["delta_time_ratio"] == pytest.approx(1 / 45)
    assert figures["delta_time_ratio_max"] == pytest.approx(1 / 40)
    assert figures["delta_bytes_ratio"] == pytest.approx(0.02)
    assert figures["delta_time_ratio_from_freeze"] == pytest.approx(1 / 45)
    assert figures["first_delta_from_freeze_s"] == pytest.approx(2 * 55 / 10)
    assert figures["step_written_ratio"] == 2
    assert figures["learner_written_ratio"] == 50
    assert figures["runs_rejected"] == 1
    late = delta_network.Pair(a_broadcast(1, 1), a_broadcast(1, 1), a_broadcast(1, 1, late_ms=1000.0))
    assert not late.valid
