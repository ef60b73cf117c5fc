"""Configuration of a coordinator that serves a cell of another run (docs/scale.md)."""

from __future__ import annotations

from pathlib import Path

from rollcast.runtime.config import ConfigModel


class CellConfig(ConfigModel):
    """A cell: this coordinator's members generate for another coordinator, the head."""

    invite_file: Path | None = None
    """File with the invite that `rollcast invite --role cell` made at the head; none: this is a run of its own. In a
    cell, copy task, tokenizer and sampling from the head's configuration. learner_public_key and the length of the run
    are the head's, and settings of batches, staleness and verifiers are not used."""
