"""Hold milliseconds per token of serving engines: measured (IOG, vLLM) and modelled (aiconfigurator, vLLM).

Origin: data/iog-vllm and data/aiconfigurator.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from statistics import median

from capacity.catalogue.csv_tables import read_rows
from capacity.catalogue.gpus import gpus
from capacity.catalogue.models import models
from capacity.model.roofline import UNTIMED_EFFICIENCY, Gpu, ModelShape, TimedDecode, fit_efficiency

TIMED_CONCURRENCY = 8
"""Concurrency of the decode that an efficiency is fitted from: of 1, 8 and 32 the one that predicts the others best."""

_SYSTEMS = {"rtx_pro_6000_server": "rtx-pro-6000-server"}
_SERVED_GPUS = {"H100-PCIe": "h100-pcie", "RTX-4090": "rtx-4090"}
#: Name of a model in the measurements -> a model of the catalogue with the same sizes.
_SERVED_MODELS = {
    "AceMath-7B-Instruct": "r1-distill-qwen-7b",
    "DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
    "DeepSeek-R1-Distill-Qwen-1.5B": "r1-distill-qwen-1.5b",
    "DeepSeek-R1-Distill-Qwen-14B": "r1-distill-qwen-14b",
    "DeepSeek-R1-Distill-Qwen-32B": "r1-distill-qwen-32b",
    "DeepSeek-R1-Distill-Qwen-7B": "r1-distill-qwen-7b",
    "Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "QwQ-32B-Preview": "r1-distill-qwen-32b",
    "gemma-2-9b-it": "gemma-2-9b",
    "phi-4": "phi-4",
}
_REQUESTS = 200  # requests behind each measured row, whose column ``tok`` sums their output tokens
_PROMPT_TOKENS = 205.0  # mean prompt of these requests: total_input_tokens / completed of the results


@functools.cache
def modelled_decodes() -> tuple[TimedDecode, ...]:
    """Return aiconfigurator's decodes of Qwen3-8B on six GPU types, at 1 to 256 rollouts in flight.

    The mean context of a decode is the prompt and half of the output.
    """
    return tuple(
        TimedDecode(
            gpu=_gpu_of_system(row["system"]),
            model=models()["qwen3-8b"],
            concurrency=float(row["batch"]),
            context=float(row["isl"]) + float(row["osl"]) / 2,
            ms_per_token=float(row["tpot_ms"]),
        )
        for row in read_rows("aiconfigurator", "qwen3_8b_bf16_vllm.csv")
    )


@functools.cache
def measured_decodes() -> tuple[TimedDecode, ...]:
    """Return measured decodes of vLLM 0.8.5 on one RTX 4090 or H100 PCIe: ten models, 1 to 32 requests a second.

    The number of requests in flight is not recorded; by Little's law it is tokens a second times seconds a token. That
    is a mean over the run, its start and its end included, so that at 32 requests a second the median pace belongs to
    a higher concurrency than the one given here.
    """
    return tuple(
        TimedDecode(
            gpu=gpus()[_SERVED_GPUS[row["gpu"]]],
            model=models()[_SERVED_MODELS[row["model"]]],
            concurrency=float(row["out_tps"]) * float(row["tpot_p50"]) / 1000.0,
            context=_PROMPT_TOKENS + float(row["tok"]) / _REQUESTS / 2,
            ms_per_token=float(row["tpot_p50"]),
            prompt_per_token=_PROMPT_TOKENS * _REQUESTS / float(row["tok"]),
        )
        for row in read_rows("iog-vllm", "summary.csv")
        if row["n"] == "1" and row["model"] in _SERVED_MODELS
    )


@functools.cache
def efficiencies() -> Mapping[str, float]:
    """Return the share of the roofline that each GPU reaches, by its name.

    It is fitted from the modelled decode at 8 rollouts where the GPU has one; else it is the median over models of the
    fits from each model's measured decode at the lowest concurrency.
    """
    fitted = {
        decode.gpu.name: fit_efficiency(decode)
        for decode in modelled_decodes()
        if decode.concurrency == TIMED_CONCURRENCY
    }
    lightest: dict[tuple[Gpu, ModelShape], TimedDecode] = {}
    for decode in measured_decodes():
        known = lightest.setdefault((decode.gpu, decode.model), decode)
        if decode.concurrency < known.concurrency:
            lightest[decode.gpu, decode.model] = decode
    for name in {gpu.name for gpu, _ in lightest} - fitted.keys():
        fitted[name] = median(fit_efficiency(one) for (gpu, _), one in lightest.items() if gpu.name == name)
    return fitted


def efficiency_of(gpu: Gpu) -> float:
    """Return the share of the roofline that this GPU reaches; UNTIMED_EFFICIENCY for a GPU without a timed decode."""
    return efficiencies().get(gpu.name, UNTIMED_EFFICIENCY)


def _gpu_of_system(system: str) -> Gpu:
    return gpus()[_SYSTEMS.get(system, system.replace("_", "-"))]
