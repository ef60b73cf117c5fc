"""Start vLLM's asynchronous engine as the peer asks for it."""

from __future__ import annotations

from typing import Any

_EXTENSION = "peer.engines.vllm.server.weights.VersionWeights"
_NOISE = "peer.engines.vllm.server.sampling:KeyedNoise"

ADAPTERS_AT_ONCE = 2
"""Versions of adapters with which requests run at a time: one whose rollouts end, and the next."""


class ModelRefused(Exception):
    """vLLM has no way to run the model on this machine, however often it is started."""


def start_llm(settings: dict[str, Any]) -> Any:
    """Return a started AsyncLLM. Blocks for seconds, with a GPU's compilation for minutes.

    It has the weights of the base of adapters, or random ones if each version brings its own.

    Args:
        settings: peer.engines.vllm.checkpoint.ServerShape as a dictionary.

    Raises:
        ModelRefused: vLLM cannot run the model here.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        _check_head_size(settings["head_size"])
    share = settings["memory_share"]
    devices = tensor_parallel(settings["tensor_parallel"], settings["heads"])
    cache: dict[str, Any] = {} if share is None else {"gpu_memory_utilization": share}
    if settings["cache_bytes"] or on_cpu:  # on a processor there is no memory that is vLLM's alone
        cache_bytes = settings["cache_bytes"] or settings["cache_bytes_least"]
        cache["kv_cache_memory_bytes"] = -(-cache_bytes // min(devices, settings["key_value_heads"]))
    lora: dict[str, Any] = {}
    if settings["adapter_rank"]:
        lora = {"enable_lora": True, "max_lora_rank": settings["adapter_rank"], "max_loras": ADAPTERS_AT_ONCE}
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=settings["folder"],
            load_format="auto" if settings["base"] else "dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype=settings["dtype"],
            # Logits in bfloat16 would have 8 bits: noise of that size decides between tokens.
            hf_overrides={"head_dtype": "float32"},
            max_model_len=settings["tokens_max"],
            max_num_seqs=settings["concurrent_rollouts"],
            tensor_parallel_size=devices,
            enforce_eager=on_cpu,
            enable_prefix_caching=True,
            # The noise of a step needs the number of tokens that are there, so steps are not scheduled ahead.
            async_scheduling=False,
            logits_processors=[_NOISE],
            logprobs_mode="processed_logits",
            worker_extension_cls=_EXTENSION,
            disable_log_stats=True,
            enable_log_requests=False,
            **cache,
            **lora,
        )
    )


def _check_head_size(head_size: int) -> None:
    """
    Raises:
        ModelRefused: vLLM has no attention for such heads on a processor, which it notices at the first token only.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if head_size not in sizes:
        taken = ", ".join(map(str, sizes))
        raise ModelRefused(f"on a processor vLLM takes heads of {taken} values, not of {head_size}")


def tensor_parallel(asked: int, heads: int) -> int:
    """Return over how many devices the model is divided: ``asked``, or with 0 as many as are there and fit.

    Args:
        heads: query heads of the model, which are divided evenly.
    """
    from vllm.platforms import current_platform

    if asked or current_platform.is_cpu():
        return asked or 1
    devices: int = current_platform.device_count()
    return max(size for size in range(1, max(1, devices) + 1) if heads % size == 0)


def facts() -> dict[str, Any]:
    """Return the release of vLLM, the kind of device, and their number, for the operator."""
    import vllm
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {"vllm": vllm.__version__, "device": "cpu", "devices": 1}
    return {
        "vllm": vllm.__version__,
        "device": current_platform.get_device_name(),
        "devices": current_platform.device_count(),
    }
