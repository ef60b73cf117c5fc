"""Configuration of a cell's uplink."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from peer.config import LinkConfig, PeerConfig, StoreConfig
from rollcast.runtime.config import ConfigModel


class UplinkConfig(ConfigModel):
    """A cell's uplink: it leases from the head, and brings versions to the cell (docs/scale.md)."""

    name: str = Field("cell", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")
    """Name under which the head's operator sees this cell."""
    head_invite_file: Path = Path("head-invite.txt")
    """File with the invite that `rollcast invite --role cell` made at the head."""
    cell_invite_file: Path = Path("runs/coordinator/secrets/invite-learner.txt")
    """File with the cell's invite for its learner, in whose place this process is; the cell's coordinator writes it."""
    state_folder: Path = Path("cell-state")
    """Folder for identities, certificates and received versions."""
    link: LinkConfig = LinkConfig()
    """Chunk links to the head's origin and peers."""
    store: StoreConfig = StoreConfig(states_in_memory=False)
    """Versions on disk, where the cell's origin is served from: states_in_memory and memory_only have no effect."""
    coordinator_timeout_s: float = Field(86_400.0, gt=0.0)
    """Seconds to retry while the cell's coordinator is unreachable, after which this process ends."""

    def peer(self) -> PeerConfig:
        """Return the configuration of the peer that this process is at the head."""
        return PeerConfig(
            name=self.name,
            invite_file=self.head_invite_file,
            state_folder=self.state_folder,
            link=self.link,
            store=self.store.model_copy(update={"states_in_memory": False, "memory_only": False}),
            page=False,
        )
