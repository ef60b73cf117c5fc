from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.flight_format import FORMAT, Entry, EventEntry, Gap, Head, entries_of, event_entry
from coordinator.shell import flight_recorder as recorder_module
from coordinator.shell.flight_recorder import Recorder, segment_path
from tests.coordinator import core_world as build

HEAD = Head(FORMAT, "rollcast", 1.0, 0.0, build.settings(), None)


def read(folder: Path) -> list[Entry]:
    return [entry for path in sorted(folder.glob("*.rec")) for entry in entries_of(path.read_bytes())]


def test_everything_noted_is_on_disk_after_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record", 3, HEAD, bytes_max=1 << 20)
    events = [build.heartbeat("a", active=number) for number in range(500)]
    for number, event in enumerate(events):
        recorder.note(float(number), event, [])
    recorder.close()
    assert read(tmp_path / "record") == [HEAD, *(event_entry(float(n), event, []) for n, event in enumerate(events))]
    assert segment_path(tmp_path / "record", 3, 0).stat().st_mode & 0o077 == 0


def test_oldest_segments_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "SEGMENT_BYTES", 200)
    folder = tmp_path / "record"
    for incarnation in range(1, 7):
        recorder = Recorder(folder, incarnation, HEAD, bytes_max=1_500)
        recorder.note(1.0, build.joined("a"), [])
        recorder.close()
    kept = sorted(path.name for path in folder.glob("*.rec"))
    assert kept[-1] == segment_path(folder, 6, 0).name
    assert 1 <= len(kept) < 6
    assert sum(path.stat().st_size for path in folder.glob("*.rec")) <= 1_500


def test_slow_disk_leaves_a_recorded_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "FLUSH_S", 60.0)
    monkeypatch.setattr(recorder_module, "WAITING_BYTES_MAX", 4_000)
    recorder = Recorder(tmp_path / "record", 1, HEAD, bytes_max=1 << 20)
    event = build.heartbeat("a")
    for _ in range(100):
        recorder.note(1.0, event, [])
    recorder.close()
    entries = read(tmp_path / "record")
    assert isinstance(entries[-1], EventEntry)
    assert len(entries) < 101


def test_a_gap_is_noted_before_the_next_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "FLUSH_S", 60.0)
    recorder = Recorder(tmp_path / "record", 1, HEAD, bytes_max=1 << 20)
    monkeypatch.setattr(recorder_module, "WAITING_BYTES_MAX", 0)
    recorder.note(1.0, build.heartbeat("a"), [])
    recorder.note(2.0, build.heartbeat("a"), [])
    monkeypatch.setattr(recorder_module, "WAITING_BYTES_MAX", 1 << 20)
    recorder.note(3.0, build.heartbeat("a"), [])
    recorder.close()
    assert read(tmp_path / "record") == [HEAD, Gap(2), event_entry(3.0, build.heartbeat("a"), [])]


def test_a_disk_that_fails_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("a file where the folder should be")
    recorder = Recorder(tmp_path / "record", 1, HEAD, bytes_max=1 << 20)
    recorder.note(1.0, build.joined("a"), [])
    recorder.close()
    recorder.note(2.0, build.joined("b"), [])
    assert recorder.failed
