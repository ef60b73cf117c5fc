"""Test `rollcast broadcast`: its requests to the coordinator, and the screen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rollcast.cli.coordinator_api import Target
from rollcast.cli.live import broadcast
from rollcast.cli.live.broadcast_view import heat_line, line, render
from rollcast.cli.options import RunOptions
from rollcast.runtime.errors import MalformedMessage, RollcastError, RunFolderError, Unreachable
from tests.coordinator.sample_status import broadcast_hop, broadcast_peer, sample_broadcast


def lines_of(broadcast: dict[str, Any], *, width: int = 80, **options: Any) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(broadcast, width=width, **options))
    console.file.close()
    return console.export_text().splitlines()


def fleet(count: int, behind: int) -> dict[str, Any]:
    """Return an origin and ``count`` peers; the first ``behind`` hold only a part, in the coordinator's order."""
    origin = sample_broadcast()["peers"][0]
    peers = [broadcast_peer(f"peer-{number}", number / behind) for number in range(behind)]
    peers += [broadcast_peer(f"peer-{number}") for number in range(behind, count)]
    return sample_broadcast(peers=[origin, *peers], peers_holding={"have": count - behind, "total": count})


def test_screen_shows_the_broadcast() -> None:
    text = "\n".join(lines_of(sample_broadcast()))
    for expected in (
        "version 87",
        "7 of 8 peers hold it",
        "spreading for 3.20 s",
        "waiting for peer-5, which holds 41% of version 87",
        "last 1.91 s   p50 1.87 s   p95 7.31 s",
        "delta on version 86, 5.3 MB; a peer received 5.3 MB",
        "3.7 GB to peers, 17% of it from the origin",
        "181 GB by deltas",
        "hedged 31   duplicate 12   rejected 0   re-parentings 9",
        "mesh of 9 stripes; 14 made, 1 since the announcement",
        "peer-5 → peer-2  0.78     183  212 MB  direct, cubic",
        "64 hops measured: p50 0.86, fastest 6.20 MB/s",
        "5 dialable, 3 hole-punchable, 1 only outwards",
        "4 LAN, 52 direct, 6 hole-punched, 2 relayed",
    ):
        assert expected in text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("count", [8, 200])
@pytest.mark.parametrize("rows", [24, 40])
def test_screen_fits_its_terminal(width: int, count: int, rows: int) -> None:
    lines = lines_of(fleet(count, behind=3), width=width, rows=rows)
    assert max(map(len, lines)) <= width
    assert len(lines) <= rows
    assert any("peer-0 " in line and " 0% " in line for line in lines)  # furthest behind: always there


def test_a_large_fleet_shows_those_behind_and_counts_the_others() -> None:
    lines = lines_of(fleet(200, behind=4), rows=40)
    names = [line.split()[1] for line in lines if "peer-" in line and "→" not in line and "waiting" not in line]
    assert names[:4] == ["peer-0", "peer-1", "peer-2", "peer-3"]
    assert any(f"… and {200 - len(names)} more that hold more chunks than these" in line for line in lines)


def test_a_small_fleet_is_in_the_order_of_names() -> None:
    peers = [broadcast_peer(name) for name in ("peer-10", "peer-2")]
    lines = lines_of(sample_broadcast(peers=peers, hops=[]))
    assert [line.split()[1] for line in lines if "generating" in line] == ["peer-2", "peer-10"]


def test_screen_marks_a_silent_peer_and_a_lost_coordinator() -> None:
    silent = broadcast_peer("peer-9", 0.5, last_seen_s=4.2)
    text = "\n".join(lines_of(sample_broadcast(peers=[silent]), notice="no coordinator answers, for 3 s"))
    assert "silent 4 s" in text
    assert "no coordinator answers, for 3 s" in text
    assert "waiting for" not in text


def test_names_cannot_draw_on_the_screen() -> None:
    evil = "[/red][bold]x"
    broadcast = sample_broadcast(peers=[broadcast_peer(evil)], hops=[broadcast_hop(evil, "b")], run_name="[/r]")
    text = "\n".join(lines_of(broadcast, width=120))
    assert text.count(evil) == 2
    assert "broadcast · [/r]" in text


def test_screen_before_anything_is_known() -> None:
    empty = sample_broadcast(
        version=None,
        running=False,
        started_s_ago=None,
        waiting_for="the learner to announce its first version",
        encoding=None,
        encodings=[],
        bytes_per_peer=None,
        peers_holding={"have": 0, "total": 0},
        heat_map="",
        t_bcast_s={"last": None, "p50": None, "p95": None},
        totals={**sample_broadcast()["totals"], "origin_share": None, "bytes_from_origin": 0, "bytes_from_peers": 0},
        peers=[],
        hop_rates={"measured": 0, "slowest": None, "p50": None, "fastest": None, "congestion_control": {}},
        hops=[],
    )
    assert "no version yet" in "\n".join(lines_of(empty))
    assert line(empty).startswith(
        "version -: nothing is announced, 0 of 0 peers hold it  T_bcast last - p95 -  waiting"
    )


def test_line() -> None:
    done = sample_broadcast(running=False, waiting_for="", started_s_ago=7500.0)
    assert line(done) == ("version 87: announced 2 h 5 min ago, 7 of 8 peers hold it  T_bcast last 1.91 s p95 7.31 s")
    assert "T_bcast last 142 ms" in line(sample_broadcast(t_bcast_s={"last": 0.142, "p50": None, "p95": None}))
    assert "announced before this coordinator started" in line(sample_broadcast(started_s_ago=None))


@pytest.mark.parametrize(
    ("cells", "share", "width", "drawn"),
    [
        ([], 1.0, 4, "████"),
        ([], 0.0, 4, "····"),
        ([], 0.5, 2, "▄▄"),
        ([255, 0, 128, 255], 0.6, 4, "█·▄█"),
        ([255, 254, 0, 1], 0.5, 2, "▇▁"),
        ([255, 0], 0.5, 4, "██··"),
    ],
)
def test_heat_line(cells: list[int], share: float, width: int, drawn: str) -> None:
    assert heat_line(bytes(cells).hex(), share, width) == drawn


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=128), st.floats(0, 1), st.integers(1, 200))
def test_only_complete_cells_are_full(cells: bytes, share: float, width: int) -> None:
    drawn = heat_line(cells.hex(), share, width)
    assert len(drawn) == width
    if cells and width <= len(cells):
        assert ("█" * width == drawn) == (set(cells) == {255})
        assert ("·" * width == drawn) == (set(cells) == {0})


Asked = Callable[..., Any]


def answers(*given: dict[str, Any] | RollcastError) -> Asked:
    """Return a coordinator that answers with each of these in turn, and then always with the last."""
    left = list(given)

    async def fetch(_session: aiohttp.ClientSession, _target: Target, path: str) -> dict[str, Any]:
        assert path == "/api/v1/broadcast"
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, RollcastError):
            raise answer
        return answer

    return fetch


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "WATCH_INTERVAL_S", 0.001)


def test_terminal_gets_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broadcast, "fetch", answers(sample_broadcast()))
    assert broadcast.status() == 0
    assert "waiting for peer-5" in capsys.readouterr().out


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broadcast, "fetch", answers(sample_broadcast()))
    assert broadcast.status(json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == sample_broadcast()


def test_no_coordinator_is_an_error_with_a_code(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        broadcast.status(run=RunOptions(tmp_path))
    with pytest.raises(Unreachable):
        broadcast.status(run=RunOptions(url="http://127.0.0.1:1"))


def test_answer_of_another_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "fetch", answers({"peers": 3}))
    with pytest.raises(MalformedMessage):
        broadcast.status()


async def test_watching_survives_a_coordinator_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, stop = sample_broadcast(version=88), asyncio.Event()
    gone = Unreachable("no coordinator answers at http://127.0.0.1:7401")
    monkeypatch.setattr(broadcast, "fetch", answers(sample_broadcast(), gone, newest))
    shown: list[tuple[int, str]] = []

    def show(found: dict[str, Any], lost: str) -> None:
        shown.append((found["version"], lost))
        if found is newest:
            stop.set()

    async with aiohttp.ClientSession() as session:
        await broadcast.follow(session, Target(Path()), show, stop=stop)
    assert shown == [
        (87, ""),
        (87, "no coordinator answers at http://127.0.0.1:7401 for 0 s; these are the last figures"),
        (88, ""),
    ]


@pytest.mark.parametrize("first", [[], [sample_broadcast()]])
async def test_watch_ends_when_the_coordinator_stays_silent(
    first: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "GONE_S", 0.0)
    monkeypatch.setattr(broadcast, "fetch", answers(*first, Unreachable("gone")))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unreachable):
            await broadcast.follow(session, Target(Path()), lambda found, lost: None, stop=asyncio.Event())


def test_watched_json_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    broadcast._print_json(sample_broadcast(), "")
    broadcast._print_json(sample_broadcast(), "gone")
    broadcast._print_line(sample_broadcast(), "gone")
    first, second = capsys.readouterr().out.splitlines()
    assert (json.loads(first)["version"], second) == (87, "gone")
