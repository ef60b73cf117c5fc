"""`rollcast identity FILE`: the Ed25519 key that names a process."""

from __future__ import annotations

import json
from pathlib import Path

from rollcast.cli.options import Json
from rollcast.wire.identity.identity import Identity


def identity(file: Path, /, *, json_output: Json = False) -> int:
    """Show an identity file, making it (readable by you alone) if it is missing.

    Parameters
    ----------
    file
        where the key is kept. Losing it loses the identity: keep a copy.
    json_output
        print one JSON object.
    """
    found = Identity.load_or_create(file)
    public_key = found.public_key.hex()
    if json_output:
        print(json.dumps({"peer_id": found.peer_id, "public_key": public_key, "file": str(file)}))
    else:
        print(f"peer id     {found.peer_id}\npublic key  {public_key}\nfile        {file}")
    return 0
