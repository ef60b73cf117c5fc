"""Hold milliseconds per token of serving engines: measured (IOG, vLLM) and modelled (aiconfigurator, vLLM).

Origin: data/iog-vllm and data/aiconfigurator.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from capacity.catalogue.csv_tables import read_rows
from capacity.catalogue.gpus import gpus
from capacity.catalogue.models import models
from capacity.model.roofline import (
    UNTIMED_EFFICIENCY,
    WEIGHT_BYTES,
    Gpu,
    ModelShape,
    TimedDecode,
    fit_efficiency,
)

TIMED_CONCURRENCY = 8
"""Concurrency of the decode that an efficiency is fitted from: of 1, 8 and 32 the one that predicts the others best."""

TIMED_INTERVAL, UNTIMED_INTERVAL = 0.15, 0.25
"""Relative errors that 90 % of held-out measurements stay within (`python -m bench throughput`): on a GPU with a timed
decode; on one without, or on several that share a model."""
SMALLEST_MODEL = 3e9
"""Parameters below which the host's speed decides, which differs by a factor of 3 between two machines."""
SMALL_INTERVAL = 1.4
"""Relative error that all 15 rows of smaller models stay within; each takes longer a token than estimated."""
UNMEASURED_INTERVAL = 1.0
"""Relative error that is assumed of mixtures of experts and int4 weights: a factor of two. No row shows it."""

_SYSTEMS = {"rtx_pro_6000_server": "rtx-pro-6000-server"}
_SERVED_GPUS = {"H100-PCIe": "h100-pcie", "RTX-4090": "rtx-4090"}
#: Name of a model in the measurements -> a model of the catalogue with the same sizes.
_SERVED_MODELS = {
    "AceMath-7B-Instruct": "r1-distill-qwen-7b",
    "DeepSeek-R1-Distill-Llama-70B": "llama-3.3-70b",
    "DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
    "DeepSeek-R1-Distill-Qwen-1.5B": "r1-distill-qwen-1.5b",
    "DeepSeek-R1-Distill-Qwen-14B": "r1-distill-qwen-14b",
    "DeepSeek-R1-Distill-Qwen-32B": "r1-distill-qwen-32b",
    "DeepSeek-R1-Distill-Qwen-7B": "r1-distill-qwen-7b",
    "Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic": "llama-3.3-70b",
    "Meta-Llama-3-70B-Instruct": "llama-3.3-70b",
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
    """Return measured decodes of vLLM 0.8.5 on 1 to 8 RTX 4090 or H100 PCIe: 13 models, 1 to 32 requests a second.

    The number of requests in flight is not recorded; ``_busy_concurrency`` derives it from the arrivals.
    """
    return tuple(_measured(row) for row in read_rows("iog-vllm", "summary.csv") if row["model"] in _SERVED_MODELS)


def _measured(row: Mapping[str, str]) -> TimedDecode:
    model, tokens, pace_ms = models()[_SERVED_MODELS[row["model"]]], float(row["tok"]), float(row["tpot_p50"])
    if "FP8" in row["model"]:
        model = replace(model, name=f"{model.name}-fp8", bytes_per_parameter=WEIGHT_BYTES["fp8"])
    request_s = tokens / _REQUESTS * pace_ms / 1000.0
    return TimedDecode(
        gpu=gpus()[_SERVED_GPUS[row["gpu"]]],
        model=model,
        concurrency=_busy_concurrency(float(row["qps"]), request_s),
        context=_PROMPT_TOKENS + tokens / _REQUESTS / 2,
        ms_per_token=pace_ms,
        prompt_per_token=_PROMPT_TOKENS * _REQUESTS / tokens,
        gpus=int(row["n"]),
    )


def _busy_concurrency(requests_per_second: float, request_s: float) -> float:
    """Return the requests in flight that the median token sees: their mean over tokens rather than over time.

    200 requests arrive at an even rate over A seconds and take L each, so their number rises for min(A, L) seconds,
    stays, and falls as long. A trapezoid of that shape has the mean of squares / mean ``peak (A + L - 4/3 ramp) /
    (A + L - ramp)``; at 32 requests a second it is twice the mean over the run.
    """
    arriving_s = _REQUESTS / requests_per_second
    ramp_s = min(arriving_s, request_s)
    whole_s = arriving_s + request_s
    return requests_per_second * ramp_s * (whole_s - 4.0 / 3.0 * ramp_s) / (whole_s - ramp_s)


@functools.cache
def efficiencies() -> Mapping[str, float]:
    """Return the speed of each timed GPU relative to the engine's fit, by its name.

    It is fitted from the modelled decode at 8 rollouts where the GPU has one; else it is the median over models of the
    fits from each model's measured decode at the lowest concurrency, small models left out.
    """
    fitted = {
        decode.gpu.name: fit_efficiency(decode)
        for decode in modelled_decodes()
        if decode.concurrency == TIMED_CONCURRENCY
    }
    lightest: dict[tuple[str, str], TimedDecode] = {}
    for decode in measured_decodes():
        if decode.gpus > 1 or decode.model.parameters < SMALLEST_MODEL:
            continue
        known = lightest.setdefault((decode.gpu.name, decode.model.name), decode)
        if decode.concurrency < known.concurrency:
            lightest[decode.gpu.name, decode.model.name] = decode
    for name in {gpu for gpu, _ in lightest} - fitted.keys():
        fitted[name] = median(fit_efficiency(one) for (gpu, _), one in lightest.items() if gpu == name)
    return fitted


def efficiency_of(gpu: Gpu) -> float:
    """Return the speed of this GPU relative to the engine's fit; UNTIMED_EFFICIENCY without a timed decode."""
    return efficiencies().get(gpu.name, UNTIMED_EFFICIENCY)


def interval_of(gpu: Gpu, model: ModelShape, gpus_sharing: int = 1) -> float:
    """Return the relative error that 90 % of estimated speeds of this kind stay within.

    There are measurements of dense models from 7B, in bf16 and fp8, and a few of small ones. Of mixtures of experts and
    int4 weights none could be shipped, so their interval is a wide one that was assumed: measure them.
    """
    if model.parameters < SMALLEST_MODEL:
        return SMALL_INTERVAL
    if model.computed_parameters < model.parameters or model.bytes_per_parameter < WEIGHT_BYTES["fp8"]:
        return UNMEASURED_INTERVAL
    return TIMED_INTERVAL if gpu.name in efficiencies() and gpus_sharing == 1 else UNTIMED_INTERVAL


def _gpu_of_system(system: str) -> Gpu:
    return gpus()[_SYSTEMS.get(system, system.replace("_", "-"))]
