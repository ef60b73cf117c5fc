"""Test where tensors are found in parameters, with loaders that pack and cut as vLLM's do. Needs torch."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def packed_model(torch: Any, transform: bool = False) -> Any:
    """Return the model of the second of two devices, which has half of query and key in one parameter."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qk = torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False)
            self.norm = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            for name, tensor in weights:
                if name == "norm":
                    self.norm.data.copy_(tensor + 1 if transform else tensor)
                elif name == "q":
                    self.qk.data[:2].copy_(tensor.narrow(0, 2, 2))
                else:
                    self.qk[2:3] = tensor[1:2]

    return Model()


def test_parts_of_packed_and_cut_parameters_are_found_filled_and_read() -> None:
    torch = pytest.importorskip("torch")
    from peer.engines.vllm.server.placement import find_placement

    model = packed_model(torch)
    shapes = {"q": (4, 4), "k": (2, 4), "norm": (4,)}
    placement = find_placement(model, [(name, torch.empty(shape, device="meta")) for name, shape in shapes.items()])
    assert not model.qk.any(), "nothing is copied while the places are found"
    assert placement.described() == {
        "q": [[[2, 0], [2, 4], 0, 0, [4, 1]]],
        "k": [[[1, 0], [1, 4], 0, 8, [4, 1]]],
        "norm": [[[0, 0], [4, 1], 1, 0, [1, 1]]],
    }
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    expected = packed_model(torch)
    expected.load_weights(tensors.items())
    for name, tensor in tensors.items():
        turned = tensor.mT.contiguous().mT if tensor.dim() == 2 else tensor
        assert placement.fill(name, turned) > 0
        read = torch.zeros_like(tensor)
        placement.read(name, read)
        half = slice(len(tensor) // 2, None) if tensor.dim() == 2 else slice(None)
        assert torch.equal(read[half], tensor[half])
    assert torch.equal(model.qk, expected.qk)
    assert torch.equal(model.norm, expected.norm)


def test_loaders_that_change_a_tensor_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from peer.engines.vllm.server.placement import NotPlaced, find_placement

    with pytest.raises(NotPlaced, match="converts"):
        find_placement(packed_model(torch, transform=True), [("norm", torch.empty(4, device="meta"))])
