from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.events.audit_events import RolloutAudit
from coordinator.core.members.audit_book import AUDIT, AuditBook
from coordinator.ledger.event_archive import write_segment
from coordinator.ledger.store import StoryEntry
from coordinator.stores.sqlite import Ledger
from coordinator.stores.story import Story, _slots, parse, story_of
from rollcast.runtime.errors import ConfigError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Epoch, RolloutId, Step, Version
from tests.coordinator import stored_work as work


async def a_run(path: Path) -> None:
    """Record rollouts 1 and 2 trained in step 1 with version 3, rollout 4 dropped as stale, lease 5 open, a peer."""
    ledger = Ledger.open(path)
    await ledger.record_version(Epoch(0), Version(3), b"announcement")
    await ledger.record_event("peer_joined", work.PEER, "atlas as peer", cause=f"peer {work.PEER}")
    await work.score(ledger, 1, 2)
    await work.fill(ledger, 4)
    await ledger.close_attempt(work.close(4))
    await work.issue(ledger, 5)
    await ledger.record_batch(work.batch(0, 1, 2))
    await ledger.record_event(
        "learner_waited", "step 1", '[["store", "", 0.015], ["generate", "12D3KooWtest", 2]]', cause="step 1"
    )
    await ledger.record_step(Step(1), {"reward_mean": 0.5})
    await ledger.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    await a_run(path)
    return path


def whats(story: Story) -> list[str]:
    assert list(story.lines) == sorted(story.lines, key=lambda line: line.at_unix_s)
    return [line.what for line in story.lines]


async def test_a_rollout_from_lease_to_batch(ledger: Path) -> None:
    story = story_of(RunFolder(ledger.parent), "rollout 1")
    assert story.facts["fate"] == "trained in step 1"
    assert story.facts["lease"] == "1"
    assert story.facts["segments"] == [{"version": 3, "epoch": 0, "peer": work.PEER, "tokens": 4}]
    assert whats(story) == [
        "issued slot 0 of group 1 to atlas",
        "received slot 0 of group 1 and stored it as rollout 1",
        "scored rollout 1: reward 0.1",
        "added rollout 1 to the batch of step 1",
    ]


async def test_dropped_lease_has_a_reason(ledger: Path) -> None:
    story = story_of(RunFolder(ledger.parent), "lease 4")
    assert story.facts["slots"] == {"0": "dropped: stale"}
    assert whats(story)[-1] == "dropped slot 0 of group 4 from atlas: stale"
    assert story_of(RunFolder(ledger.parent), "lease 5").facts["slots"] == {"0": "open"}


async def test_a_group_has_its_attempts(ledger: Path) -> None:
    story = story_of(RunFolder(ledger.parent), "group:2")
    assert story.facts == {"problem": "sum:2", "over_at_step": 1, "attempts": 1}
    assert len(story.lines) == 4


@pytest.mark.parametrize("words", ["peer atlas", "atlas", str(work.PEER), str(work.PEER)[:10]])
async def test_peer_is_found_by_name_id_or_prefix(ledger: Path, words: str) -> None:
    story = story_of(RunFolder(ledger.parent), words)
    assert story.facts == {"id": work.PEER, "attempts": {"open": 1, "stale": 1, "trained": 2}}
    assert story.names == {work.PEER: "atlas"}
    assert set(whats(story)) == {  # in the order of their times, some of which are the same
        "joined as peer",
        "issued slot 0 of group 1: 1 trained in step 1",
        "issued slot 0 of group 2: 1 trained in step 1",
        "issued slot 0 of group 4: 1 dropped: stale",
        "issued slot 0 of group 5: 1 open",
    }


async def test_a_peers_facts_have_what_audits_found(ledger: Path) -> None:
    book = AuditBook()
    found = RolloutAudit(RolloutId(1), work.PEER, 20, 1, 0, 0.02, 0.01, 3, "jax-cpu")
    book.add(Step(1), [found], lambda _: "")
    opened = Ledger.open(ledger)
    await opened.set_meta(AUDIT, book.to_json())
    await opened.close()
    facts = story_of(RunFolder(ledger.parent), "peer atlas").facts
    assert facts["reputation"] == "watched: 1 token beyond the bound, too few to convict"
    assert facts["worst token"] == "0.02 nats beyond it, token 3 of rollout 1"


async def test_version_with_the_outcomes_of_its_rollouts(ledger: Path) -> None:
    story = story_of(RunFolder(ledger.parent), "version 3")
    assert story.facts == {"epoch": 0, "trained_by_age": {"-3": 2}}
    assert whats(story) == ["announced in epoch 0"]


async def test_a_step_with_its_batch_figures_and_wait(ledger: Path) -> None:
    story = story_of(RunFolder(ledger.parent), "step 1")
    assert story.facts["rollouts_by_peer"] == {work.PEER: 2}
    assert story.facts["figures"] == {"reward_mean": 0.5}
    assert set(whats(story)) == {
        "its batch of 2 rollouts was recorded",
        "learner waited (step 1): store 0.015 s, generate for atlas 2 s",
        "the learner finished the step",
    }


@pytest.mark.parametrize("words", ["lease 99", "rollout 99", "group 99", "step 99", "version 99", "peer nobody"])
async def test_unknown_object_is_refused(ledger: Path, words: str) -> None:
    with pytest.raises(ConfigError, match="ledger has no"):
        story_of(RunFolder(ledger.parent), words)


async def test_an_unknown_peer_is_answered_with_the_names_of_the_others(ledger: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        story_of(RunFolder(ledger.parent), "peer nobody")
    assert refused.value.fix == "name one of atlas, or give a peer's id"


async def test_the_refusal_of_a_number_names_the_oldest_and_newest(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    with pytest.raises(ConfigError) as empty:
        story_of(RunFolder(tmp_path), "lease 17")
    assert "(" not in empty.value.fix
    with pytest.raises(ConfigError) as early:
        story_of(RunFolder(tmp_path), "step 40")
    assert early.value.cause == "the run has no step yet"
    for number in (262, 300):  # those before were of an evaluation
        await work.issue(ledger, (1 << 32) + number)
    await ledger.close()
    with pytest.raises(ConfigError) as refused:
        story_of(RunFolder(tmp_path), "lease 17")
    assert "(lease 262 to 300)" in refused.value.fix
    assert "`rollcast explain lease 262` is the nearest" in refused.value.fix
    assert "of an evaluation" in refused.value.cause
    with pytest.raises(ConfigError) as later:
        story_of(RunFolder(tmp_path), "lease 400")
    assert "`rollcast explain lease 300` is the nearest" in later.value.fix


async def test_steps_count_from_1(ledger: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        story_of(RunFolder(ledger.parent), "step 0")
    assert refused.value.cause == "steps count from 1"
    assert "(step 1 to 1)" in refused.value.fix
    assert story_of(RunFolder(ledger.parent), "rollout 1").facts["step"] == 1


@pytest.mark.parametrize("words", ["", "lease x", "lease 1 2", "rollout -1", "peer '; DROP TABLE x"])
def test_malformed_words_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="object of a run"):
        parse(words)


@pytest.mark.parametrize(("words", "fix"), [("lease", "lease 17"), (" peer ", "peer NAME")])
def test_a_kind_alone_lacks_its_object(words: str, fix: str) -> None:
    with pytest.raises(ConfigError, match="is named") as refused:
        parse(words)
    assert refused.value.fix == f"write `rollcast explain {fix}`"


def test_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        story_of(RunFolder(tmp_path), "lease 1")
    (tmp_path / "store.sqlite").write_text("not a database" * 100)
    with pytest.raises(StoreError, match="cannot read"):
        story_of(RunFolder(tmp_path), "lease 1")


async def test_story_includes_archived_events(ledger: Path) -> None:
    peer = "12D3KooWformer"
    entries = [
        StoryEntry(0, 1.0, "peer_joined", peer, "castor as peer", f"peer {peer}"),
        StoryEntry(-1, 2.0, "penalised", peer, "uploaded nonsense", "upload 7"),
        StoryEntry(-2, 3.0, "learner_waited", "step 1", '[["pacing", "", 1]]', "step 1"),
        StoryEntry(1, 4.0, "peer_joined", work.PEER, "archived, and not deleted yet", "peer"),
    ]
    write_segment(ledger.parent / "events", entries, 1 << 20)
    assert whats(story_of(RunFolder(ledger.parent), "peer castor")) == [
        "joined as peer",
        "penalised (castor): uploaded nonsense",
    ]
    assert "learner waited (step 1): pacing 1 s" in whats(story_of(RunFolder(ledger.parent), "step 1"))
    assert [what for what in whats(story_of(RunFolder(ledger.parent), "peer atlas")) if "joined" in what] == [
        "joined as peer"
    ]


async def test_leases_count_from_1_in_each_coordinator_process(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    for process, number in ((1, 17), (2, 17)):
        await work.issue(ledger, (process << 32) + number)
    await ledger.close()
    first, second = story_of(RunFolder(path.parent), "lease 17"), story_of(RunFolder(path.parent), "lease 2.17")
    assert (first.subject, second.subject) == ("lease 17", "lease 2.17")
    assert (first.facts["id"], second.facts["id"]) == ((1 << 32) + 17, (2 << 32) + 17)
    assert [line.cause for line in second.lines] == ["lease 2.17"]


@pytest.mark.parametrize(
    ("indices", "words"),
    [([3], "slot 3"), ([0, 1], "slots 0 and 1"), ([4, 5, 6], "slots 4 to 6"), ([0, 2, 5], "slots 0, 2 and 5")],
)
async def test_slots_that_share_a_moment_are_one_line(tmp_path: Path, indices: list[int], words: str) -> None:
    assert _slots(indices) == words


async def test_a_step_that_a_new_epoch_skipped_says_so(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await ledger.record_batch(work.batch(16))
    await ledger.close()
    assert whats(story_of(RunFolder(tmp_path), "step 17")) == ["skipped: a new epoch began above it"]
