"""Export a run's policy as a model for the Hugging Face Hub, for `rollcast export`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.evaluation.offline import load_policy
from learner.publishing.versions import RetainedVersions
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.hub.adapter import save_adapter
from rollcast.policy.hub.save import FILE_BYTES_MAX, FileDtype, save_model
from rollcast.policy.lora import is_adapter, merged
from rollcast.policy.params import Params
from rollcast.policy.snapshot import thaw, without_codes
from rollcast.runtime.errors import CheckpointError, MalformedMessage, ModelError
from rollcast.runtime.run_folder import RunFolder, fsync_folder
from rollcast.wire.ids import Version
from rollcast.wire.text.model_folder import CONFIG, GENERATION_CONFIG, TOKENIZER, ModelFolder
from rollcast.wire.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that was read from a run folder."""

    step: int
    model: ModelConfig
    params: Params  # by Rollcast's tensor names; f32, or in a version's dtypes; adapters beside their base
    tokenizer_json: str  # JSON of the run's tokenizer; empty if only a version was read


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: the policy's step, the folder written and the size of its weights."""

    step: int
    folder: Path
    weight_bytes: int


def export(
    run_folder: Path,
    target: Path,
    *,
    version: int | None = None,
    dtype: FileDtype = "bfloat16",
    tokenizer_folder: Path | None = None,
    file_bytes_max: int = FILE_BYTES_MAX,
    adapter: bool = False,
) -> Exported:
    """Write the newest checkpoint, or a published version, into a new folder, atomically.

    Args:
        run_folder: the learner's run folder.
        target: the folder to create; it may exist if it is empty.
        version: a version that the run still keeps; None: the newest checkpoint.
        dtype: the dtype of the written weights. A checkpoint has float32, a version the dtypes that peers read.
        tokenizer_folder: the folder that tokenizer files are taken from; None: the model that the run started from.
        file_bytes_max: the largest size of one file of weights.
        adapter: write the adapters alone, in the form of the library PEFT; otherwise they are merged into the weights.

    Raises:
        CheckpointError: there is no checkpoint, or no such version.
        ModelError: the policy matches no published architecture, has no adapters although they are wanted alone, or
            the target is not empty or cannot be written.
    """
    check_free(target)
    policy = _newest(run_folder) if version is None else published(run_folder, Version(version))
    source = tokenizer_folder or RunFolder(run_folder).model
    stage = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        stage.mkdir(parents=True)
        small = ModelFolder(source)
        described = small.read_optional_json(CONFIG)
        if adapter:
            name = str(described.get("_name_or_path", ""))
            written = save_adapter(policy.model, policy.params, stage, dtype, base_name=name)
        else:
            small.copy_small_files(stage)
            _write_tokenizer(policy, stage)
            base, whole = described | _ends(stage), _whole(policy, dtype)
            written = save_model(policy.model, whole, stage, dtype, base_config=base, file_bytes_max=file_bytes_max)
        if target.exists():
            target.rmdir()
        stage.rename(target)
        fsync_folder(target.parent)
    except OSError as error:
        raise ModelError(f"cannot write {target}", cause=str(error), fix="choose another folder") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Exported(policy.step, target, written)


def check_free(target: Path) -> None:
    """Check that a folder can be created.

    Raises:
        ModelError: something is there.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already", cause="nothing is overwritten", fix="choose another folder")


def _newest(run_folder: Path) -> Policy:
    host, params = load_policy(run_folder)
    return Policy(host.step, ModelConfig.model_validate_json(host.model_json), params, host.tokenizer_json)


def published(run_folder: Path, version: Version) -> Policy:
    """Read a published version from a learner's run folder.

    Raises:
        CheckpointError: the run does not keep the version, or it cannot be read.
    """
    folder = RunFolder(run_folder).versions
    if not folder.is_dir():
        raise CheckpointError(f"{run_folder} has no versions", fix="give the learner's run folder")
    retained = RetainedVersions(folder, mapped=0)
    record, state = retained.base(version)
    try:
        model = described_model(record)
        frozen = thaw(model, record.tensors, state)
        if record.base is not None:
            # The base comes last: its scales replace those with noise.
            below, state_below = retained.base(record.base.version)
            frozen |= thaw(model, below.tensors, state_below)
    except MalformedMessage as error:
        raise CheckpointError(f"version {version} cannot be read", cause=error.what, fix=error.fix) from None
    return Policy(version, model, frozen, "")


def _whole(policy: Policy, dtype: FileDtype) -> Params:
    """Return the policy's parameters as numbers, adapters merged into them in float32 before they are rounded."""
    adapters = {name: value for name, value in policy.params.items() if is_adapter(name)}
    base = without_codes(policy.model, {name: value for name, value in policy.params.items() if name not in adapters})
    if not adapters:
        return base
    # One tensor at a time is float32.
    return {name: merged(policy.model, name, value, adapters).astype(dtype) for name, value in base.items()}


def _write_tokenizer(policy: Policy, folder: Path) -> None:
    """Write our own small tokenizer in the Hub's format if the run does not use a published one."""
    if (folder / TOKENIZER).exists() or not policy.tokenizer_json or "pieces" not in json.loads(policy.tokenizer_json):
        return
    tokenizer = Tokenizer.from_json(policy.tokenizer_json)
    ends = {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    files: dict[str, dict[str, Any]] = tokenizer.to_hub() | {GENERATION_CONFIG: ends}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _ends(folder: Path) -> dict[str, Any]:
    """Return config.json's entries for the tokens that begin, end and pad a text, from generation_config.json."""
    found = ModelFolder(folder).read_optional_json(GENERATION_CONFIG)
    return {name: found[name] for name in ("eos_token_id", "pad_token_id", "bos_token_id") if name in found}
