"""List the origin of each set of shipped data in one line; the README in the data's folder has the details."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of one folder of shipped data.

    Args:
        measured: date of the measurement: YYYY, YYYY-MM or YYYY-MM-DD.
        relative_uncertainty: one standard deviation of a figure / the figure; None: none is stated.
    """

    folder: str
    what: str
    source: str
    licence: str
    measured: str
    relative_uncertainty: float | None


ORIGINS = {
    origin.folder: origin
    for origin in (
        Origin("gpus", "GPU data sheets", "aiconfigurator 0.12.0 and NVIDIA whitepapers", "Apache-2.0", "2026", None),
        Origin("models", "model sizes", "config.json of each repository on Hugging Face", "facts", "2025", None),
        Origin("prices", "offers of rented GPUs", "skypilot-org/skypilot-catalog", "facts", "2026-11-22", 0.5),
        Origin("skyplane", "prices of traffic by cloud region", "skyplane-project/skyplane", "Apache-2.0", "2022", 0.1),
        Origin(
            "servegen-deepseek-r1",
            "lengths of DeepSeek-R1",
            "alibaba/ServeGen (arXiv 2505.09999)",
            "Apache-2.0",
            "2025",
            0.5,
        ),
        Origin(
            "azure-llm",
            "lengths of chat and code",
            "Azure/AzurePublicDataset (Splitwise)",
            "CC-BY-4.0",
            "2023-11-16",
            0.5,
        ),
        Origin("prime-rl", "learner step times", "PrimeIntellect-ai/prime-rl", "Apache-2.0", "2026-01-15", 0.1),
        Origin(
            "iog-vllm", "vLLM under load", "IOG-Foundation/llm-inference-benchmarks", "Apache-2.0", "2025-06-10", 0.1
        ),
        Origin("aiconfigurator", "modelled pace of Qwen3-8B", "aiconfigurator 0.12.0", "Apache-2.0", "2026", 0.1),
    )
}
