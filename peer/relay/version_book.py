"""Decide which encodings of which versions to receive, and which states to compute from them. Pure.

A peer receives what the origin broadcasts (the delta from the previous version, or the keyframe if there is none), and
the encodings that lead most cheaply from the states it holds to the newest announced version. An origin receives every
delta that the learner signed, for peers that were away, and the encodings that lead to the state. The wanted encodings
are computed again from all facts after each new one, so that they cannot become stale.

Both receive the base of a version of adapters, once: the version counts as held only when its base is held as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.events import LinkId
from peer.relay.version_paths import cheapest_path, key_of
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import KEYFRAME_ID, Manifest, VerifiedVersion

# Announcements that are kept: chains of deltas are no longer than this, nor is what a restart applies again to the
# state that is on disk (rollcast.wire.versions.chunk_store).
_KNOWN_MOST = 96


# Encodings of a path that a peer receives at a time, the first ones, besides the newest that is pushed and those over
# half of which is here. The relay's core has room for a few more (RelaySettings.encodings_in_flight_most): if all of a
# long path were asked for, it would give up the oldest, which are needed first, and the next fact would ask again.
_AT_ONCE = 6


@dataclass(frozen=True, slots=True)
class Receive:
    """Have the relay receive this encoding.

    Args:
        is_base: adapters need the version's state: it is not given up for a newer version.
    """

    manifest: Manifest
    announced: bool
    holder: LinkId | None
    is_base: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop receiving this encoding."""

    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class Materialise:
    """Compute the version's state from its base's state and this delta, both held."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class Report:
    """The version's state is here and verified."""

    version: Version


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Report on the learner's link that everything it is to send of the version is durable here."""

    version: Version
    holder: LinkId


@dataclass(frozen=True, slots=True)
class SendToAll:
    """The origin begins to broadcast this encoding: the chunks that are here, and the others as they arrive."""

    key: EncodingKey


Command = Receive | Drop | Materialise | Report | Acknowledge | SendToAll


@dataclass(slots=True)
class _Known:
    verified: VerifiedVersion
    announced: bool = False  # by the coordinator
    due: bool = False  # to be received completely: it is announced, or the coordinator is unreachable
    holder: LinkId | None = None
    from_learner: bool = False
    sent: dict[EncodingKey, Receive] = field(default_factory=dict)  # the last one of each encoding
    reported: bool = False
    acknowledged_on: LinkId | None = None
    broadcast: bool = False


def broadcast_manifest(verified: VerifiedVersion) -> Manifest:
    """Return the encoding that the origin broadcasts: the delta from the latest base, or the keyframe."""
    return max(verified.deltas, key=lambda manifest: manifest.base_version or 0, default=verified.keyframe)


class VersionBook:
    """Keeps which versions are announced and which encodings and states are held; each new fact returns commands.

    Args:
        role: "peer" or "origin".
        progress: returns the chunks held and all chunks of an encoding that is being received; (0, 0) for others.
        on_arrival: an origin broadcasts what the learner pushes while it arrives; otherwise once it is announced.
    """

    def __init__(
        self, role: str, progress: Callable[[EncodingKey], tuple[int, int]], *, on_arrival: bool = False
    ) -> None:
        self._role = role
        self._on_arrival = on_arrival and role == "origin"
        self._progress = progress
        self._known: dict[Version, _Known] = {}
        self._states: set[Version] = set()
        self._replaced: set[Version] = set()  # states that were verified here, and whose memory has a newer one now
        self._encodings: set[EncodingKey] = set()
        self._making: set[EncodingKey] = set()
        self._failed: set[EncodingKey] = set()  # they lead to other bytes than were signed, or no source has them
        self._kept: EncodingKey | None = None  # the keyframe that took the place of a dropped one
        self._offline = False

    # ------------------------------------------------------------ facts

    def verified(self, version: int) -> VerifiedVersion | None:
        """Return the verified announcement of a version; None if it is not known."""
        known = self._known.get(Version(version))
        return None if known is None else known.verified

    def add_announcement(
        self, verified: VerifiedVersion, *, announced: bool, learner_link: LinkId | None = None
    ) -> list[Command]:
        """Take a verified announcement from the coordinator (``announced``), a relay, or the learner's link.

        That of a version of adapters makes its base known too, which the learner sends on the same link.
        """
        known = self._known.setdefault(verified.version, _Known(verified))
        known.announced |= announced
        known.due |= announced or self._offline
        if learner_link is not None:
            known.holder, known.from_learner = learner_link, True
            known.acknowledged_on = None
        if verified.base is not None:
            base = self._known.setdefault(verified.base.version, _Known(verified.base))
            if learner_link is not None and verified.base.version not in self._states:
                base.holder = learner_link
        dropped = self._limit_known()
        self._failed = {key for key in self._failed if key.version in self._known}
        self._replaced &= self._known.keys()
        return dropped + self._settle()

    def _limit_known(self) -> list[Command]:
        """Discard the oldest announcements beyond a number, except those of bases and of the kept keyframe, and drop
        what is still to be received of these versions."""
        ordered = sorted(self._known)
        needed = {base.version for version in ordered[-_KNOWN_MOST:] if (base := self._base_of(version)) is not None}
        dropped: list[Command] = []
        for version in ordered[:-_KNOWN_MOST]:
            if version not in needed and (self._kept is None or version != self._kept.version):
                keys = self._known.pop(version).sent.keys() - self._encodings
                dropped += [Drop(key, "many newer versions are available") for key in sorted(keys)]
        return dropped

    def _base_of(self, version: Version) -> VerifiedVersion | None:
        return self._known[version].verified.base

    def set_offline(self, offline: bool) -> list[Command]:
        """Note whether the coordinator is unreachable.

        Without it the learner's signature is enough to receive a version, and for an origin to broadcast it. The
        version is reported, and so used, only once the coordinator has announced it: the coordinator rejects rollouts
        generated with a version that it does not know.
        """
        self._offline = offline
        for known in self._known.values():
            known.due |= offline
        return self._settle()

    def with_signature(self, signature: bytes) -> VerifiedVersion | None:
        """Return the version whose record has this signature; None if it is not known."""
        records = (known.verified for known in self._known.values())
        return next((one for one in records if one.announcement.record.signature == signature), None)

    def waits_for_announcement(self, version: int) -> bool:
        """Return whether the version's state, and its base's, is here and not reported."""
        known = self._known.get(Version(version))
        return known is not None and not known.announced and self._usable(Version(version))

    def link_lost(self, link: LinkId) -> None:
        """Note that a link ended. If it is the learner's, the learner opens another one and announces again."""
        for known in self._known.values():
            if known.holder == link:
                known.holder = None

    def encoding_held(self, key: EncodingKey) -> list[Command]:
        """Note that an encoding is complete, durable and verified."""
        self._encodings.add(key)
        if key.encoding_id == KEYFRAME_ID:
            self._states.add(key.version)
            self._replaced.discard(key.version)
        return self._settle()

    def made(self, key: EncodingKey) -> list[Command]:
        """Note that a Materialise succeeded: the state, and with it the keyframe, is held."""
        self._making.discard(key)
        return self.encoding_held(EncodingKey(key.version, KEYFRAME_ID))

    def not_made(self, key: EncodingKey) -> list[Command]:
        """Note that a Materialise gave other bytes than were signed or its delta is unusable; take another path."""
        self._making.discard(key)
        self._failed.add(key)
        self._encodings.discard(key)
        return self._settle()

    def base_taken(self, version: Version) -> None:
        """Note that a state's memory was used for the state that a Materialise made, or failed to make, of it.

        It is not held any more; it can be made again from what is on disk, and need not be received again.
        """
        self.removed(frozenset({EncodingKey(version, KEYFRAME_ID)}))
        self._replaced.add(version)

    def removed(self, keys: frozenset[EncodingKey]) -> None:
        """Note that retention removed encodings."""
        self._encodings -= keys
        self._states -= {key.version for key in keys if key.encoding_id == KEYFRAME_ID}

    def state_lost(self, version: Version) -> list[Command]:
        """Note that a state that was held proved damaged: it is reported again once it is here again."""
        key = EncodingKey(version, KEYFRAME_ID)
        self.removed(frozenset({key}))
        known = self._known.get(version)
        if known is not None:
            known.reported = False
            known.sent.pop(key, None)
        return self._settle()

    def given_up(self, key: EncodingKey, *, again: bool) -> None:
        """Note that the relay stopped receiving an encoding, or could not use its chunks.

        Args:
            again: the relay receives the encoding again later, unless a Drop comes before.
        """
        self.removed(frozenset({key}))
        self._making.discard(key)
        known = self._known.get(key.version)
        if known is not None and not again:
            known.sent.pop(key, None)
        if known is not None and key == key_of(broadcast_manifest(known.verified)):
            known.broadcast = False  # what was sent of it is not sent again: the neighbours' reports say what they hold
        if key == self._kept and not again:
            self._kept = None

    @property
    def in_use(self) -> frozenset[EncodingKey]:
        """The newest state that is to be received, if it is held already: retention must keep it.

        Newer ones may be here that the coordinator has not announced yet, because it is away. If they displaced this
        one, it would be received again.
        """
        newest = max((version for version, known in self._known.items() if known.due), default=None)
        return frozenset() if newest not in self._states else frozenset({EncodingKey(newest, KEYFRAME_ID)})

    def not_to_be_had(self, key: EncodingKey) -> list[Command]:
        """Note that no source has an encoding that was given up; take another path."""
        self._failed.add(key)
        return self._settle()

    # ------------------------------------------------------------ consequences

    def _settle(self) -> list[Command]:
        """Return the commands that follow from the facts and were not returned before."""
        if self._kept is not None and max(self._states, default=-1) >= self._kept.version:
            self._kept = None
        commands: list[Command] = []
        wanted = self._wanted()
        for key, manifest in wanted.items():
            received = self._receive(key, manifest)
            commands += received + (self._send_on_arrival(key) if received else [])
        commands += self._drop_others(wanted)
        commands += self._materialise()
        for version in sorted(self._known):
            commands += self._finished(version, self._known[version])
        return commands

    def _wanted(self) -> dict[EncodingKey, Manifest]:
        wanted: dict[EncodingKey, Manifest] = {}
        newest = max(self._known, default=None)
        if newest is None:
            return wanted
        due_versions = [version for version, known in self._known.items() if known.due]
        if self._role == "origin":
            for version, known in self._known.items():
                # An acknowledged version may have been removed since: it must not be received again.
                due = known.holder is not None or version == newest
                if due and (known.acknowledged_on is None or known.acknowledged_on != known.holder):
                    self._want(wanted, *self._path(version), *self._base_path(version))
                    self._want(wanted, *map(key_of, known.verified.deltas))
            return wanted
        if newest not in self._states:
            self._want(wanted, key_of(broadcast_manifest(self._known[newest].verified)))
        if due_versions:
            path = self._unless_another_keyframe(self._path(max(due_versions)))
            self._want(wanted, *[key for key in path if key not in self._encodings][:_AT_ONCE])
            self._want(wanted, *self._base_path(max(due_versions)))
        return wanted

    def _base_path(self, version: Version) -> tuple[EncodingKey, ...]:
        """Return the encodings that lead to the base of a version; none if it has no base, or the base is held."""
        base = self._base_of(version)
        return () if base is None else self._path(base.version)

    def _is_base(self, version: Version) -> bool:
        return any(base.version == version for other in self._known if (base := self._base_of(other)) is not None)

    def _usable(self, version: Version) -> bool:
        """Return whether a known version's state is held, and its base's if it has one."""
        base = self._base_of(version)
        return version in self._states and (base is None or base.version in self._states)

    def _unless_another_keyframe(self, path: tuple[EncodingKey, ...]) -> tuple[EncodingKey, ...]:
        """Return no path that begins with a second keyframe: two fetched at the same time would both come too late."""
        begins_elsewhere = bool(path) and path[0].encoding_id == KEYFRAME_ID and path[0] != self._kept
        return () if self._kept is not None and begins_elsewhere else path

    def _want(self, wanted: dict[EncodingKey, Manifest], *keys: EncodingKey) -> None:
        for key in keys:
            manifest = self._manifest(key)
            made_already = key.encoding_id == KEYFRAME_ID and key.version in self._states
            if manifest is not None and key not in self._encodings | self._failed and not made_already:
                wanted[key] = manifest

    def _manifest(self, key: EncodingKey) -> Manifest | None:
        known = self._known.get(key.version)
        return None if known is None else known.verified.manifest(key.encoding_id)

    def _path(self, target: Version) -> tuple[EncodingKey, ...]:
        if target in self._states:
            return ()
        known = {version: known.verified for version, known in self._known.items()}
        path = cheapest_path(target, known, self._states, self._missing_bytes(), self._failed)
        return () if path is None else path.keys

    def _missing_bytes(self) -> Mapping[EncodingKey, int]:
        """Return the bytes still to be received of encodings that are here in part or are received in any case."""
        missing = dict.fromkeys(self._encodings, 0)
        if self._kept is not None:
            missing[self._kept] = 0
        for known in self._known.values():
            for manifest in known.verified.manifests:
                have, total = self._progress(key_of(manifest))
                if total and key_of(manifest) not in missing:
                    missing[key_of(manifest)] = manifest.size_bytes * (total - have) // total
        return missing

    def _receive(self, key: EncodingKey, manifest: Manifest) -> list[Command]:
        known = self._known[key.version]
        # An encoding that leads to an announced version counts as announced: its own announcement may have been missed.
        due = any(one.due for version, one in self._known.items() if version >= key.version)
        receive = Receive(manifest, due, known.holder, self._is_base(key.version))
        if known.sent.get(key) == receive:
            return []
        known.sent[key] = receive
        return [receive]

    def _send_on_arrival(self, key: EncodingKey) -> list[Command]:
        """Begin to broadcast an encoding that the learner begins to push, unless that has begun."""
        known = self._known[key.version]
        pushed = self._on_arrival and known.from_learner and key == key_of(broadcast_manifest(known.verified))
        if not pushed or known.broadcast or self._superseded(key.version):
            return []
        known.broadcast = True
        return [SendToAll(key)]

    def _drop_others(self, wanted: Mapping[EncodingKey, Manifest]) -> list[Command]:
        """Drop superseded encodings of which less than half is here.

        The keyframe that took the place of a dropped one is not dropped in turn: if versions come faster than they can
        be received, none would ever be complete.
        """
        if self._role == "origin":
            return []
        newest = max(self._known, default=Version(0))
        unneeded: list[EncodingKey] = []
        for version, known in self._known.items():
            for key in known.sent:
                have, total = self._progress(key)
                superseded = key not in wanted and key not in self._encodings and key != self._kept
                if superseded and (have * 2 <= total or version == newest):
                    unneeded.append(key)
        commands: list[Command] = []
        for key in unneeded:
            del self._known[key.version].sent[key]
            if key.version < newest and key.encoding_id == KEYFRAME_ID and self._kept is None:
                asked = [one for one in wanted if one.encoding_id == KEYFRAME_ID and self._known[one.version].due]
                self._kept = max(asked, default=None)
            commands.append(Drop(key, "another encoding is cheaper, or a newer version is available"))
        return commands

    def _materialise(self) -> list[Command]:
        """Return the states to compute: newer ones than are held, and older ones on the way to what is wanted.

        A state in memory takes the place of its base, whose own delta is still here: that must not be applied again.
        A peer that holds the newest announced version waits for the announcement of the next: its base is in use until
        then and would have to be copied.
        """
        commands: list[Command] = []
        busy = {key.version for key in self._making}
        bases = {one.base_version for key in self._making if (one := self._manifest(key)) is not None}
        newest, on_the_way = max(self._states, default=-1), self._on_the_way()
        in_use = max((key.version for key in self.in_use), default=None) if self._role == "peer" else None
        for key in sorted(self._encodings):
            if key.version < newest and key not in on_the_way:
                continue
            if in_use is not None and key.version > in_use:
                continue
            manifest = self._manifest(key)
            if manifest is None or manifest.kind != "delta" or key in self._failed:
                continue
            if key.version in self._states or key.version in busy or manifest.base_version not in self._states:
                continue
            if manifest.base_version in bases:
                continue  # its memory may be the other state's by then
            busy.add(key.version)
            bases.add(manifest.base_version)
            self._making.add(key)
            commands.append(Materialise(key))
        return commands

    def _on_the_way(self) -> set[EncodingKey]:
        """Return the encodings that lead to versions that are wanted and were not held here yet."""
        if self._role == "origin":
            pushed = {version for version, known in self._known.items() if known.holder is not None}
            targets = {version for version in pushed if self._known[version].acknowledged_on is None}
        else:
            targets = {version for version, known in self._known.items() if known.due}
            targets = {max(targets, default=Version(0)), max(self._known, default=Version(0))}
        return {key for target in targets - self._replaced for key in self._path(target)}

    def _finished(self, version: Version, known: _Known) -> list[Command]:
        usable = self._usable(version)
        if not usable and version not in self._replaced:
            return []
        commands: list[Command] = []
        if usable and known.announced and not known.reported:
            known.reported = True
            commands.append(Report(version))
        # A delta that gave wrong bytes here is not received again: the state is here without it.
        complete = all(key_of(manifest) in self._encodings | self._failed for manifest in known.verified.deltas)
        if known.holder is not None and complete and known.acknowledged_on != known.holder:
            known.acknowledged_on = known.holder
            commands.append(Acknowledge(version, known.holder))
        # Only versions that the learner sent since this process started: the others were broadcast before.
        ours_to_send = self._role == "origin" and known.from_learner and known.due and not known.broadcast
        if ours_to_send and not self._superseded(version):
            key = key_of(broadcast_manifest(known.verified))
            if key in self._failed:
                key = key_of(known.verified.keyframe)
            if key in self._encodings or (usable and key.encoding_id == KEYFRAME_ID):
                known.broadcast = True
                commands.append(SendToAll(key))
        return commands

    def _superseded(self, version: Version) -> bool:
        """Return whether a newer version is broadcast already whose delta does not start from this one.

        The origin may hear of versions out of order; a peer that needs this one nevertheless requests it.
        """
        newer = [known.verified for other, known in self._known.items() if other > version and known.broadcast]
        return bool(newer) and all(broadcast_manifest(one).base_version != version for one in newer)
