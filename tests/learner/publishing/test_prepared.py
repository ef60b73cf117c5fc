from __future__ import annotations

from dataclasses import replace

import pytest

from learner.publishing.encodings import cut_up
from learner.publishing.prepared import Prepared
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import KEYFRAME_ID
from tests.wire.versions.build import CHUNK, IDENTITY, a_state, a_version

STATES = {0: a_state(seed=0), 5: a_state(seed=5)}
WHOLE, _ = a_version(STATES[0], IDENTITY, 0)
ADAPTERS, _ = a_version(STATES[5], IDENTITY, 5, base=WHOLE)
BASE = Prepared(WHOLE, {KEYFRAME_ID: cut_up(STATES[0], CHUNK)})
PREPARED = Prepared(ADAPTERS, {KEYFRAME_ID: cut_up(STATES[5], CHUNK)}, BASE)


def test_chunks_are_those_of_the_version_and_of_its_base() -> None:
    for version, state in STATES.items():
        assert PREPARED.chunk(Version(version), KEYFRAME_ID, 3) == state[3 * CHUNK : 4 * CHUNK]
        with pytest.raises(MalformedMessage):
            PREPARED.chunk(Version(version), KEYFRAME_ID, 11)


def test_an_origin_may_lack_the_base_too() -> None:
    assert set(PREPARED.chunk_lists()) == {(Version(0), KEYFRAME_ID), (Version(5), KEYFRAME_ID)}
    assert PREPARED.size_bytes_max == len(STATES[0]) + len(STATES[5])
    alone = replace(PREPARED, base=None)
    assert alone.chunk_lists() == {(Version(5), KEYFRAME_ID): PREPARED.encodings[KEYFRAME_ID].chunk_hashes}
    assert alone.size_bytes_max == len(STATES[5])
