"""List accelerators that programs are compiled for ahead of time, and load their compilers.

XLA's compilers for TPUs and NVIDIA GPUs are libraries of the CPU: from a description of the devices they make the same
program as on the devices, with its memory plan. Nothing runs, so nothing is learned about speed or values. On GPUs the
figures lack the workspaces of cuDNN, which picks its algorithms on the device only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.policy.sizing.hardware import CATALOGUE, Hardware
from rollcast.runtime.errors import MissingExtra, ProcessFailed
from rollcast.runtime.install import install_command


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Devices of one kind, with the mesh that the learner has on them."""

    platform: str
    """gpu or tpu, as rollcast.policy.attention calls them."""
    compute_capability: float
    """The generation of an NVIDIA GPU; 0 for all other devices."""
    hardware_name: str
    """The name in the catalogue of rollcast.policy.sizing."""
    topology: str
    """How the compiler calls them: hosts x processes x GPUs, or a TPU slice."""
    data: int
    fsdp: int

    @property
    def hardware(self) -> Hardware:
        """Return the catalogue's entry of one of these devices."""
        return next(one for one in CATALOGUE if one.name == self.hardware_name)

    @property
    def count(self) -> int:
        """Return the number of devices."""
        return self.data * self.fsdp


#: The devices by the names that figures have. RLAX trained a 32B model on 1,024 chips of a v5p; here they are 16
#: replicas, so that weights are gathered among 64 chips only.
ACCELERATORS: Mapping[str, Accelerators] = {
    "h100x8": Accelerators("gpu", 9.0, "A100 / H100 80GB", "1 x 1 x 8", data=1, fsdp=8),
    "v5p-2x2x4": Accelerators("tpu", 0.0, "TPU v5p", "v5p:2x2x4", data=1, fsdp=16),
    "v5p-8x8x16": Accelerators("tpu", 0.0, "TPU v5p", "v5p:8x8x16", data=16, fsdp=64),
}

_PACKAGES = {"gpu": ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"), "tpu": ("libtpu",)}

#: An H100 as XLA's compiler asks for it; numbers by NVIDIA's data sheet and as its driver reports them.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation" device_address_bits: 64 name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_CUDNN_VERSION = 91_000  # as cuDNN itself reports 9.10.0
_ROOT = Path(__file__).parents[2]


def why_not(accelerators: Accelerators) -> str:
    """Return why nothing can be compiled for these accelerators here; empty if it can."""
    absent = [name for name in _PACKAGES[accelerators.platform] if not _is_installed(name)]
    return f"the compiler is not installed: {', '.join(absent)} cannot be imported" if absent else ""


def environment(accelerators: Accelerators) -> dict[str, str]:
    """Return the environment variables of a process that compiles for these accelerators; they act before jax starts.

    Raises:
        MissingExtra: the compiler is not installed.
    """
    reason = why_not(accelerators)
    if reason:
        raise MissingExtra(
            f"cannot compile for {accelerators.hardware_name}",
            cause=reason,
            fix=install_command("ahead"),
        )
    # Arrays are on the CPU, and a cached program would take no time to compile.
    found = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    if accelerators.platform == "tpu":
        # libtpu would ask a cloud's metadata server which slice this host belongs to, and refuse a second process.
        return found | {
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-8",
            "TPU_WORKER_HOSTNAMES": "localhost",
        }
    # Autotuning measures kernels on a device.
    flags = f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={_nvcc_folder()}"
    return found | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}


def printed_by(module: str, arguments: list[str], accelerators: Accelerators, timeout_s: float) -> Any:
    """Run a module that compiles for these accelerators, and return the JSON value in the last line that it prints.

    It runs in a process of its own, because the compilers' environment is fixed once jax starts.

    Raises:
        MissingExtra: the compiler is not installed.
        ProcessFailed: the process failed; it has printed why.
    """
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        cwd=_ROOT,
        env=os.environ | environment(accelerators),
    )
    if result.returncode:
        raise ProcessFailed(f"{module} {' '.join(arguments)} failed", cause=f"exit status {result.returncode}")
    return json.loads(result.stdout.splitlines()[-1])


def devices_of(accelerators: Accelerators) -> list[Any]:
    """Return jax's devices, on which shapes can be placed and programs compiled; see ``environment``."""
    from jax.experimental import topologies

    if accelerators.platform == "tpu":
        return list(topologies.get_topology_desc(topology_name=accelerators.topology, platform="tpu").devices)
    _assume_cudnn(accelerators.compute_capability)
    described = topologies.get_topology_desc(
        topology_name="h100", platform="cuda", target_config=_H100, topology=accelerators.topology
    )
    return list(described.devices)


def _assume_cudnn(compute_capability: float) -> None:
    """Let jax lower cuDNN's attention kernel: it asks this machine's devices and cuDNN whether they support it."""
    from jax._src.cudnn import fused_attention_stablehlo as kernel

    kernel.check_cudnn_version = lambda: _CUDNN_VERSION
    kernel.check_compute_capability = lambda least: compute_capability >= float(least)
    kernel.is_cuda_compute_capability_equal = lambda exactly: compute_capability == float(exactly)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _nvcc_folder() -> Path:
    """Return the folder of the assembler ptxas and of CUDA's device library."""
    spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))
