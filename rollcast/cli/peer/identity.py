"""`rollcast identity FILE`: show the Ed25519 key that identifies a process.

`rollcast peer id show|backup|restore`: show, back up or restore the key that identifies this machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cyclopts import App

from rollcast.cli.options import AsJson, Json
from rollcast.cli.peer.folders import StateFolder, state_folder
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.identity.identity import Identity


def identity(file: Path, /, *, json_output: Json = False) -> int:
    """Show an identity file; create it, readable only by you, if it is missing.

    Parameters
    ----------
    file
        File that holds the key. If it is lost, so is the identity: keep a copy.
    json_output
        Print one JSON object.
    """
    found = Identity.load_or_create(file)
    public_key = found.public_key.hex()
    if json_output:
        print(json.dumps({"peer_id": found.peer_id, "public_key": public_key, "file": str(file)}))
    else:
        print(f"peer id     {found.peer_id}\npublic key  {public_key}\nfile        {file}")
    return 0


FILE = "identity.key"

app = App(name="id", help="Show, back up or restore this machine's identity.")


@app.default
def show(*, state: StateFolder = None, json_output: AsJson = False) -> int:
    """Show this machine's identity; create it if there is none."""
    folder = state or state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return identity(folder / FILE, json_output=json_output)


@app.command
def backup(to: Path, /, *, state: StateFolder = None) -> int:
    """Copy this machine's key to a file that only you can read. Keep it like a password: it is the machine's identity.

    Parameters
    ----------
    to
        File to create.
    """
    source = (state or state_folder()) / FILE
    found = Identity.load(source)
    _write_new(to, source.read_bytes())
    print(f"The key of {found.peer_id} is in {to}. Keep it like a password.")
    return 0


@app.command
def restore(file: Path, /, *, state: StateFolder = None) -> int:
    """Restore this machine's key from a backup. No two machines may use the same key at once.

    Parameters
    ----------
    file
        File that `rollcast peer id backup` wrote.
    """
    found = Identity.load(file)
    folder = state or state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    _write_new(folder / FILE, file.read_bytes())
    print(f"This machine now has the identity {found.peer_id}.")
    return 0


def _write_new(path: Path, data: bytes) -> None:
    if path.exists():
        raise ConfigError(
            f"{path} already exists", cause="overwriting it would destroy the key in it", fix="move it away first"
        )
    try:
        write_atomically(path, data, mode=0o600)
    except OSError as error:
        raise _as_error(path, error) from None


def _as_error(path: Path, error: OSError) -> RunFolderError:
    return run_folder_error(path.parent if path.parent != Path() else Path(os.curdir), error)
