"""Make a run with certificates for tests of links."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import PeerId, Role, RunId


class LinkRun:
    """Issues credentials of one run."""

    def __init__(self, folder: Path, run_id: str = "run-1") -> None:
        self.run_id = RunId(run_id)
        self.identities: dict[PeerId, Identity] = {}
        self.ca = RunCA.create(folder / f"secrets-{run_id}", self.run_id)

    def member(self, role: str) -> tuple[PeerId, TlsCredentials]:
        identity = Identity.generate()
        self.identities[identity.peer_id] = identity
        return identity.peer_id, self.credentials(identity.peer_id, role)

    def credentials(self, peer_id: PeerId, role: str, lifetime_s: float = 3600.0) -> TlsCredentials:
        key = new_tls_key()
        pem = self.ca.issue(key.csr_pem(), peer_id=peer_id, role=cast(Role, role), lifetime_s=lifetime_s)
        return TlsCredentials(self.ca.certificate_pem, pem, key.private_pem)
