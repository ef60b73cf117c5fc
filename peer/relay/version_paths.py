"""Find the cheapest path to a version's state: its keyframe, or a state that is held and the deltas after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from peer.links.neighbours import EncodingKey
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.records import Manifest, VerifiedVersion

STEPS_MAX = 96
"""Encodings of one path at most: applying each is a pass over the whole state. It also bounds the search."""


@dataclass(frozen=True, slots=True)
class Path:
    """The encodings that lead to a state.

    Args:
        keys: encodings in the order in which they are applied; only the first may be a keyframe. Empty if the state is
            held already.
        bytes_to_receive: bytes of all of them together that are not here yet.
    """

    keys: tuple[EncodingKey, ...]
    bytes_to_receive: int


def cheapest_path(
    target: Version,
    known: Mapping[Version, VerifiedVersion],
    states_held: Set[Version],
    missing_bytes: Mapping[EncodingKey, int],
    failed: Set[EncodingKey],
) -> Path | None:
    """Return the path with the fewest bytes to receive, then with the fewest encodings; None if there is no path.

    Args:
        known: verified announcements.
        states_held: versions whose state is here.
        missing_bytes: bytes still to be received of encodings that are here in part, or whole (0); others count in
            full.
        failed: encodings that led to wrong bytes before, or that no source has.
    """
    best: dict[Version, Path] = {version: Path((), 0) for version in states_held}
    if target in best:
        return best[target]
    # A delta's base is older than its version, so in ascending order every base is settled before it is needed.
    for version in sorted(version for version in known if version <= target):
        if version in best:
            continue
        ways = [
            way
            for manifest in known[version].manifests
            if key_of(manifest) not in failed and (way := _by(manifest, best, missing_bytes)) is not None
        ]
        if ways:
            best[version] = min(ways, key=lambda way: (way.bytes_to_receive, len(way.keys), way.keys))
    return best.get(target)


def _by(manifest: Manifest, best: Mapping[Version, Path], missing_bytes: Mapping[EncodingKey, int]) -> Path | None:
    """Return the cheapest path whose last encoding is this one; None if there is none."""
    if manifest.kind == "keyframe":
        before = Path((), 0)
    elif manifest.base_version is not None and manifest.base_version in best:
        before = best[manifest.base_version]
    else:
        return None
    if len(before.keys) >= STEPS_MAX:
        return None
    key = key_of(manifest)
    return Path((*before.keys, key), before.bytes_to_receive + missing_bytes.get(key, manifest.size_bytes))


def key_of(manifest: Manifest) -> EncodingKey:
    """Return the encoding that a manifest describes."""
    return EncodingKey(manifest.version, EncodingId(manifest.encoding_id))
