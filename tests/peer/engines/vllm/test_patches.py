"""Test that a patch changes a model's parameters as loading the newer version would, whatever the layout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from peer.engines.vllm.patches import (
    CHANGED_SHARE_MAX,
    Part,
    Tensor,
    changed_items,
    checkpoint_position,
    list_path,
    read_placement,
    read_table,
    write_patch,
)

# Two kernels that vLLM packs into one parameter, an embedding, experts, and a vector.
TENSORS = (
    Tensor(("q",), "float32", (6, 4), 0, 96, transposed=True),
    Tensor(("k",), "float32", (6, 2), 96, 48, transposed=True),
    Tensor(("embedding",), "float32", (10, 6), 144, 240, transposed=False),
    Tensor(("e0", "e1", "e2"), "float32", (3, 6, 4), 384, 288, transposed=True),
    Tensor(("norm",), "float32", (6,), 672, 24, transposed=False),
)
ITEMS = 174


def hub(state: np.ndarray, tensor: Tensor) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint from a state, as matrices."""
    whole = state[tensor.offset_bytes // 4 :][: tensor.items].reshape(tensor.shape)
    parts = list(whole) if whole.ndim == 3 else [whole]
    turned = [part.T if tensor.transposed else part.reshape(len(part), -1) for part in parts]
    return dict(zip(tensor.names, turned, strict=True))


def workers(count: int) -> list[dict[str, list[Part]]]:
    """Return where each of ``count`` workers has the tensors: kernels cut by rows, experts by columns."""
    found = []
    for rank in range(count):
        q, k, vocabulary, width = 4 // count, 2 // count, 10 // count, 6 // count
        placed = {
            "q": [Part((rank * q, 0), (q, 6), 0, 0, (6, 1))],
            "k": [Part((rank * k, 0), (k, 6), 0, q * 6, (6, 1))],
            "embedding": [Part((rank * vocabulary, 0), (vocabulary, 6), 1, 0, (6, 1))],
            "norm": [Part((0, 0), (6, 1), 2, 0, (1, 1))],
        }
        for expert in range(3):
            placed[f"e{expert}"] = [Part((0, rank * width), (4, width), 3, expert * 4 * width, (width, 1))]
        found.append(placed)
    return found


def loaded(state: np.ndarray, placement: dict[str, list[Part]]) -> list[np.ndarray]:
    """Return the parameters after loading whole tensors."""
    flat = [np.zeros(100, np.float32) for _ in range(4)]
    for tensor in TENSORS:
        for name, matrix in hub(state, tensor).items():
            for part in placement[name]:
                rows, columns = (
                    np.arange(start, start + size) for start, size in zip(part.starts, part.sizes, strict=True)
                )
                at = part.offset + np.add.outer(
                    (rows - rows[0]) * part.strides[0], (columns - columns[0]) * part.strides[1]
                )
                flat[part.target][at] = matrix[np.ix_(rows, columns)]
    return flat


def applied(flat: list[np.ndarray], path: Path) -> None:
    """Write a patch into parameters."""
    data = path.read_bytes()
    for entry in json.loads(list_path(path).read_text()):
        indices = np.frombuffer(data, "<i4", entry["count"], entry["indices_at"])
        assert (np.diff(indices) > 0).all()
        flat[entry["target"]][indices] = np.frombuffer(data, "<f4", entry["count"], entry["values_at"])


@pytest.mark.parametrize("count", [1, 2])
def test_a_patch_gives_what_loading_the_version_gives(tmp_path: Path, count: int) -> None:
    random = np.random.default_rng(count)
    for round_ in range(20):
        old = random.standard_normal(ITEMS).astype(np.float32)
        new = old.copy()
        new[random.choice(ITEMS, random.integers(1, int(CHANGED_SHARE_MAX * ITEMS)), replace=False)] += 1.0
        files = [tmp_path / f"{round_}.{rank}" for rank in range(count)]
        placements = workers(count)
        size = write_patch(memoryview(old).cast("B"), memoryview(new).cast("B"), TENSORS, placements, files)
        assert size is not None
        assert size.changed == np.count_nonzero(old != new)
        assert size.bytes_moved >= 8 * size.changed
        for placement, path in zip(placements, files, strict=True):
            flat = loaded(old, placement)
            applied(flat, path)
            assert all(map(np.array_equal, flat, loaded(new, placement)))


def test_a_bit_pattern_is_an_element_like_any_other(tmp_path: Path) -> None:
    """A NaN is written, and -0.0 differs from 0.0."""
    old = np.zeros(ITEMS, np.float32)
    new = old.copy()
    new[[0, 5]] = np.float32("nan"), -0.0
    path = tmp_path / "patch"
    size = write_patch(memoryview(old).cast("B"), memoryview(new).cast("B"), TENSORS, workers(1), [path])
    assert size is not None
    assert size.changed == 2
    flat = loaded(old, workers(1)[0])
    applied(flat, path)
    expected = loaded(new, workers(1)[0])
    assert [one.tobytes() for one in flat] == [one.tobytes() for one in expected]


def test_where_much_changes_there_is_no_patch(tmp_path: Path) -> None:
    old, new = np.zeros(ITEMS, np.float32), np.ones(ITEMS, np.float32)
    assert (
        write_patch(memoryview(old).cast("B"), memoryview(new).cast("B"), TENSORS, workers(1), [tmp_path / "p"]) is None
    )


def test_equal_states_give_an_empty_patch(tmp_path: Path) -> None:
    state = memoryview(np.zeros(ITEMS, np.float32)).cast("B")
    size = write_patch(state, state, TENSORS, workers(1), [tmp_path / "p"])
    assert size is not None
    assert (size.changed, size.bytes_moved) == (0, 0)
    assert json.loads(list_path(tmp_path / "p").read_text()) == []


def test_changes_are_found_across_the_pieces_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.engines.vllm.patches._COMPARED_ITEMS", 7)
    old, new = np.zeros(24, np.uint32), np.zeros(24, np.uint32)
    new[[0, 6, 7, 23]] = 1, 2, 3, 4
    found = list(changed_items(memoryview(old).cast("B"), memoryview(new).cast("B"), TENSORS[0]))
    assert np.concatenate([indices for indices, _ in found]).tolist() == [0, 6, 7, 23]
    assert np.concatenate([values for _, values in found]).tolist() == [1, 2, 3, 4]


def test_positions_are_those_of_the_hubs_tensors() -> None:
    expert, row, column = checkpoint_position(TENSORS[3], np.array([0, 1, 4, 24, 71]))
    assert expert.tolist() == [0, 0, 0, 1, 2]
    assert row.tolist() == [0, 1, 0, 0, 3]
    assert column.tolist() == [0, 0, 1, 0, 5]


def test_tables_and_placements_are_read(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(json.dumps([asdict(TENSORS[0])]))
    assert read_table(tmp_path / "t") == TENSORS[:1]
    (tmp_path / "p").write_text('{"q": [[[0, 0], [4, 6], 0, 0, [6, 1]]]}')
    assert read_placement(tmp_path / "p") == {"q": [Part((0, 0), (4, 6), 0, 0, (6, 1))]}
