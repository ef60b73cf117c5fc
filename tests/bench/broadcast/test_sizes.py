from __future__ import annotations

from pathlib import Path

import pytest

from bench.broadcast.sizes import beyond_state_bytes, version_figures
from bench.programs.noise_learner import FileWeights
from rollcast.wire.ids import Version


def test_figures_compare_the_publication_with_its_slowest_stage() -> None:
    answer = {
        "stages_s": {"freeze": 1.0, "push": 4.0},
        "seconds": 5.0,
        "started_at": 100.0,
        "encoding_bytes": [1 << 20],
    }
    found = version_figures(answer, held_at=107.0)
    assert found["publish_stage_ratio"] == 1.25
    assert found["held_s"] == 7.0
    assert found["mib"] == 1.0


@pytest.mark.parametrize(("mapped_kib", "beyond_kib"), [(100, 64), (1024 + 10, 64 + 10)])
def test_mapped_files_count_only_beyond_one_state(mapped_kib: int, beyond_kib: int) -> None:
    status = f"Name:\tpython\nRssAnon:\t64 kB\nRssFile:\t{mapped_kib} kB\nRssShmem:\t0 kB\n"
    assert beyond_state_bytes(status, 1 << 20) == beyond_kib * 1024


def test_weights_of_a_file_change_by_a_hundredth(tmp_path: Path) -> None:
    weights, path = FileWeights(1), tmp_path / "state"
    path.touch()
    write = weights.begin_freeze(path, Version(0))
    write()
    before = path.read_bytes()
    assert write.size_bytes == len(before)
    weights.step()
    weights.begin_freeze(path, Version(1))()
    changed = sum(one != other for one, other in zip(before[::2], path.read_bytes()[::2], strict=True))
    assert changed / (len(before) / 2) == pytest.approx(0.01, rel=0.02)
