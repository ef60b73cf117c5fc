"""Take a machine out of a run: remove the files that a peer wrote, each by its name, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from peer.donor.control import limits, saved_state
from peer.donor.install.join import PeerPaths
from peer.limits.decide import OwnerRequest
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import run_folder_error

#: Files and folders of a peer, except for its identity, its receipts, and what its owner allows.
_STATE = (
    *("versions", "tokenizers", "cache", "logs", "page"),
    *(
        "credentials.pem",
        "peer-records.pb",
        "invite.txt",
        "page.json",
        "lock",
        "ended.json",
    ),
    "control.sock",
)
#: Kept unless the owner wants the identity removed too. A machine that returns keeps its owner's limits, and counts the
#: month's traffic on.
_OWN = ("identity.key", "instance.json", "receipts", limits.FILE, saved_state.FILE)


def clear_up(places: PeerPaths, *, forget_identity: bool) -> list[str]:
    """Remove a peer's state, and with ``forget_identity`` also its key, receipts, limits and configuration.

    The owner's last request, such as to finish, does not outlive the state.

    Returns:
        The paths that were removed.

    Raises:
        RunFolderError: a path cannot be removed; all others are.
    """
    if (places.state_folder / saved_state.FILE).exists():
        saved = saved_state.SavedState(places.state_folder)
        saved.save(OwnerRequest(), saved.use)
    gone: list[str] = []
    failed: OSError | None = None
    targets = [places.state_folder / name for name in (*_STATE, *(_OWN if forget_identity else ()))]
    targets += [places.config_file] if forget_identity else []
    for path in targets:
        try:
            if _remove(path):
                gone.append(str(path))
        except OSError as error:
            failed = error
    if failed is not None:
        raise _as_error(places.state_folder, failed)
    if forget_identity and places.state_folder.is_dir() and not any(places.state_folder.iterdir()):
        places.state_folder.rmdir()
    return gone


def _remove(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        existed = path.is_symlink() or path.exists()
        path.unlink(missing_ok=True)
        return existed
    shutil.rmtree(path)
    return True


def _as_error(folder: Path, error: OSError) -> RunFolderError:
    return run_folder_error(folder, error)
