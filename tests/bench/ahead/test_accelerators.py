from __future__ import annotations

from pathlib import Path

import pytest

from bench.ahead import accelerators
from bench.ahead.accelerators import ACCELERATORS, environment, printed_by, why_not
from rollcast.runtime.errors import MissingExtra, ProcessFailed


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "_is_installed", lambda name: name == "jax_plugins.xla_cuda12")
    assert "libtpu" in why_not(ACCELERATORS["v5p-2x2x4"])
    assert why_not(ACCELERATORS["h100x8"]).count(",") == 0, "only the assembler is missing"
    with pytest.raises(MissingExtra) as raised:
        environment(ACCELERATORS["h100x8"])
    assert "nvidia.cuda_nvcc" in raised.value.cause
    assert "pip install" in raised.value.fix
    assert "[ahead]" in raised.value.fix


def test_arrays_stay_on_the_cpu_and_nothing_comes_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "_is_installed", lambda _name: True)
    found = environment(ACCELERATORS["v5p-8x8x16"])
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert found["TPU_SKIP_MDS_QUERY"] == "1"


def test_every_kind_of_device_is_in_the_catalogue_and_has_a_mesh() -> None:
    counts = {name: one.count for name, one in ACCELERATORS.items()}
    assert counts == {"h100x8": 8, "v5p-2x2x4": 16, "v5p-8x8x16": 1024}
    assert {one.hardware.memory_gib for one in ACCELERATORS.values()} == {80, 95}


def test_a_package_inside_a_missing_one_is_missing() -> None:
    assert not accelerators._is_installed("no_such_package.at_all")
    assert accelerators._is_installed("jax.numpy")


def test_the_last_line_that_a_process_prints_is_its_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "_is_installed", lambda _name: True)
    source = tmp_path / "compiled.json"
    source.write_text('{"bytes": 1}')
    target = ACCELERATORS["v5p-2x2x4"]
    assert printed_by("json.tool", ["--compact", str(source)], target, timeout_s=60.0) == {"bytes": 1}
    source.write_text("{")
    with pytest.raises(ProcessFailed) as raised:
        printed_by("json.tool", [str(source)], target, timeout_s=60.0)
    assert raised.value.what == f"json.tool {source} failed"
    assert raised.value.cause == "exit status 1"
