"""Say how this process computes a model: on which device, by which kernels, how exactly, and why not better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax

from rollcast.policy.attention import kernel_here
from rollcast.policy.compilation import MatmulPrecision
from rollcast.policy.config import ModelConfig
from rollcast.policy.products import fp8_unit

#: Device files of accelerators that jax may have been installed without -> what the accelerator is, and the extra.
_ACCELERATORS = {"/dev/nvidiactl": ("an NVIDIA GPU", "cuda12 or cuda13"), "/dev/accel0": ("a TPU", "tpu")}


@dataclass(frozen=True, slots=True)
class Computation:
    """How a model is computed."""

    device: str
    """For example "8 x NVIDIA H100 80GB HBM3 (gpu)"."""
    attention: str
    """The attention kernel's name; "pages" for the sampler's."""
    precision: str
    """The number format, and the unit that multiplies where that is not the same."""
    memory: str = ""
    """How many versions' weights it has room for; empty where there is no choice."""
    reasons: tuple[str, ...] = ()
    """Why the device, the kernel or the unit is not a better one; a clause each."""

    def __str__(self) -> str:
        how = f"computes on {self.device}, attention by {self.attention}, precision {self.precision}"
        return "; ".join(filter(None, (how, self.memory, *self.reasons)))


def training_computation(
    config: ModelConfig,
    row_tokens: int,
    *,
    packed: bool,
    matmul_precision: MatmulPrecision,
    mesh_sizes: tuple[int, ...],
) -> Computation:
    """Return how the learner computes rows of ``row_tokens`` tokens.

    packed: see attention.segment_attend. mesh_sizes: those of the axes data, fsdp and tensor.
    """
    choice = kernel_here(row_tokens, config.head_size, config.carrier_dtype, packed=packed)
    return _computation(config, choice.kernel, choice.reason, matmul_precision, mesh_sizes)


def sampling_computation(
    config: ModelConfig, matmul_precision: MatmulPrecision, devices: int, *, two_versions: bool
) -> Computation:
    """Return how a peer samples: its attention reads pages in plain XLA on every device.

    Args:
        devices: how many devices the model is divided among.
        two_versions: whether they hold two versions at a time; see peer.engines.device_weights.
    """
    held = "two versions" if two_versions else "one version, which the next one replaces in place"
    mesh_sizes = None if devices == 1 else (1, 1, devices)
    return _computation(config, "pages", "", matmul_precision, mesh_sizes, f"memory for {held}", devices)


def _computation(
    config: ModelConfig,
    attention: str,
    attention_reason: str,
    matmul_precision: MatmulPrecision,
    mesh_sizes: tuple[int, ...] | None,
    memory: str = "",
    count: int | None = None,
) -> Computation:
    devices = jax.devices()
    platform = devices[0].platform
    precision, unit_reason = _precision(config, matmul_precision, mesh_sizes)
    reasons = (
        missing_accelerator() if platform == "cpu" else "",
        attention_reason,
        unit_reason,
        _experts_reason(config, platform),
    )
    return Computation(
        f"{count or len(devices)} x {devices[0].device_kind} ({platform})",
        attention,
        precision,
        memory,
        tuple(reason for reason in reasons if reason),
    )


def _precision(
    config: ModelConfig, matmul_precision: MatmulPrecision, mesh_sizes: tuple[int, ...] | None
) -> tuple[str, str]:
    """Return the number format, and why products of FP8 codes are not computed by a unit for them."""
    carrier = f"float32 (products {matmul_precision})" if config.carrier_dtype == "float32" else config.carrier_dtype
    if not config.precision.startswith("fp8"):
        return f"{carrier}, base in NVFP4" if config.has_packed_base else carrier, ""
    reason = fp8_unit.refusal() or fp8_unit.mesh_refusal(mesh_sizes)
    unit = "float32 and bfloat16 units" if reason else "FP8 units"
    return f"{config.precision} in {unit}, carrier {carrier}", reason


def _experts_reason(config: ModelConfig, platform: str) -> str:
    """Return why the products of experts are not computed by a better unit or kernel; empty if there is no reason."""
    if not config.experts:
        return ""
    from rollcast.policy.kernels import grouped  # see rollcast.policy.products.grouped

    if platform == "cpu" or not grouped.is_available():
        return "XLA multiplies every token with every expert here"
    if config.precision == "fp8":
        return "experts are multiplied in bfloat16, because FP8 units have no grouped product here"
    return ""


def missing_accelerator(root: Path = Path("/")) -> str:
    """Return which accelerator of this machine jax cannot use for want of a plugin; empty if there is none."""
    for device, (what, extra) in _ACCELERATORS.items():
        if (root / device.lstrip("/")).exists():
            return f"this machine has {what}, but jax was installed without its plugin: install the extra {extra}"
    return ""
