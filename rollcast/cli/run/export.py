"""`rollcast export RUN OUT`: export a run's policy as a model that other software can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from rollcast.cli.options import Json


def export(
    run: Path,
    out: Path,
    /,
    *,
    to: Literal["hf"] = "hf",
    version: int | None = None,
    dtype: Literal["bf16", "f32"] = "bf16",
    tokenizer: Path | None = None,
    file_gb: float = 5.0,
    adapter: bool = False,
    json_output: Json = False,
) -> int:
    """Write a run's policy as safetensors, config.json and tokenizer files, as on the Hugging Face Hub.

    Parameters
    ----------
    run
        The learner's run folder, for example runs/latest.
    out
        Folder to create.
    to
        Format: hf is that of the Hugging Face Hub.
    version
        Published version to export, if the run still keeps it; the newest checkpoint by default.
    dtype
        Type of the exported weights. The run itself is not affected.
    tokenizer
        Folder with tokenizer files; by default those that the run started from.
    file_gb
        Maximum size of one file of weights in gigabytes.
    adapter
        Write the adapters alone, in the form of the library PEFT; by default they are merged into the weights.
    json_output
        Print one JSON object.
    """
    from learner.evaluation.export import export as write

    done = write(
        run,
        out,
        version=version,
        dtype="bfloat16" if dtype == "bf16" else "float32",
        tokenizer_folder=tokenizer,
        file_bytes_max=max(1, int(file_gb * 1e9)),
        adapter=adapter,
    )
    if json_output:
        print(
            json.dumps({"step": done.step, "folder": str(done.folder), "weight_bytes": done.weight_bytes, "form": to})
        )
    else:
        print(f"step {done.step} as {done.folder}: {done.weight_bytes / 1e6:,.1f} MB of weights in {dtype}")
    return 0
