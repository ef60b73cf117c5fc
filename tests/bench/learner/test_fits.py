from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench.ahead.accelerators import ACCELERATORS
from bench.learner import fits
from rollcast.policy.sizing.hardware import GIB


def compiled(gib: float, seconds: float = 30.0) -> dict[str, Any]:
    programs = [
        {"phase": "gradients", "bytes": gib * GIB},
        {"phase": "optimiser step", "bytes": 2.0 * GIB},
        {"phase": "optimiser step", "bytes": 3.0 * GIB},
    ]
    return {"compile_s": seconds, "compile_cpu_s": seconds, "programs": programs}


def test_only_the_largest_model_goes_onto_the_largest_slice() -> None:
    assert ("qwen3-32b", "v5p-8x8x16") in fits.table(None, None)
    assert ("qwen3-4b", "v5p-8x8x16") not in fits.table(None, None)
    assert fits.table(["qwen3-8b"], ["h100x8"]) == [("qwen3-8b", "h100x8")]
    assert len(fits.table(None, None)) == 9


def test_the_worst_phase_counts() -> None:
    estimate = fits.planned("qwen3-4b", ACCELERATORS["h100x8"], 8192)
    figures = fits.cell("qwen3-4b", "h100x8", compiled(20.0), estimate)
    assert figures["qwen3-4b.h100x8.total_gib"] == 20.0
    assert figures["qwen3-4b.h100x8.optimiser_step_gib"] == 3.0
    assert figures["qwen3-4b.h100x8.planned_gib"] == estimate.peak / GIB
    assert figures["qwen3-4b.h100x8.device_share"] == 0.25
    phases = [value for key, value in figures.items() if key.endswith("_planned_gib")]
    assert max(phases) <= estimate.peak / GIB


def test_the_summary_has_the_worst_cell_of_each_kind() -> None:
    figures = {
        "a.h100x8.total_gib": 10.0,
        "a.h100x8.planned_gib": 11.0,
        "a.h100x8.compile_s": 5.0,
        "a.h100x8.device_share": 0.5,
        "b.v5p-2x2x4.total_gib": 10.0,
        "b.v5p-2x2x4.planned_gib": 8.0,
        "b.v5p-2x2x4.compile_s": 50.0,
        "b.v5p-2x2x4.device_share": 0.1,
    }
    assert fits.worst(figures) == {
        "planned_error_max": pytest.approx(0.2),
        "fullest_share": 0.5,
        "compile_s_h100_max": 5.0,
        "compile_s_tpu_max": 50.0,
    }
    assert fits.worst({}) == {}


def arguments(cache: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    fits.add_arguments(parser)
    chosen = ["--model", "qwen3-4b", "--devices", "h100x8", "--devices", "v5p-2x2x4", "--optimiser", "muon"]
    return parser.parse_args([*chosen, "--cache", str(cache)])


def test_kept_results_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "why_not", lambda _accelerators: "")
    for name in ("h100x8", "v5p-2x2x4"):
        (tmp_path / f"qwen3-4b-{name}-8192-muon-{fits._digest()}.json").write_text(json.dumps(compiled(20.0, 31.0)))
    sampled = {"decode": 2.0 * GIB, "prefill": 3.0 * GIB}
    (tmp_path / f"sampler-qwen3-4b-h100x8-8192-{fits._digest()}.json").write_text(json.dumps(sampled))
    outcome = fits.run(arguments(tmp_path))
    assert outcome.figures["qwen3-4b.h100x8.sampler_gib"] == 3.0
    assert 1.0 < outcome.figures["qwen3-4b.h100x8.sampler_planned_gib"] < 20.0
    assert "qwen3-4b.v5p-2x2x4.sampler_gib" not in outcome.figures
    assert outcome.figures["compile_s_tpu_max"] == 31.0
    assert outcome.missing == ()


def test_what_cannot_be_compiled_here_is_missing_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fits, "why_not", lambda one: "no libtpu" if one.platform == "tpu" else "no assembler")
    outcome = fits.run(arguments(tmp_path))
    assert outcome.missing == ("qwen3-4b.h100x8.total_gib", "qwen3-4b.v5p-2x2x4.total_gib")
    assert "qwen3-4b on v5p-2x2x4: no libtpu" in capsys.readouterr().err
