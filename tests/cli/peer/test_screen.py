from __future__ import annotations

from typing import Any

from rollcast.cli.peer.screen import screen

REPORT: dict[str, Any] = {
    "name": "attic",
    "peer_id": "12D3KooWabcdefgh",
    "run_id": "run-1",
    "software": "rollcast 0.1.0",
    "coordinator": "host:7443",
    "connected": True,
    "state": "generating",
    "reason": "4 rollouts with version 7",
    "until": None,
    "hardware": "8 cores, NVIDIA L4",
    "uptime_s": 3725.0,
    "version_active": 7,
    "version_newest": 8,
    "receiving": {"version": 9, "chunks_have": 30, "chunks_total": 40, "map": []},
    "tokens_per_second": 1234.5,
    "tokens_generated": 1_000_000,
    "swap": {"version": 7, "kind": "delta", "paused_s": 0.021, "moved_bytes": 29_500_000, "read_back": True},
    "today": {"accepted": 40, "stale": 2},
    "total": {"accepted": 4000},
    "newest": [],
    "verdict": None,
    "reach": {
        "reachability": "dialable",
        "address": "192.0.2.1:7420 /ip4/192.0.2.1/tcp/7421",
        "nat": "mapped",
        "nat_means": "its router forwards the port",
        "checked": "3 of 4 peers that tried could connect to 192.0.2.1:7420",
        "relays": 0,
        "p2p": "running",
    },
    "links": [
        {
            "peer_id": f"peer{n}",
            "path": "direct",
            "rtt_s": 0.02 if n else 0.0002,
            "bytes_sent": 5,
            "bytes_received": 6_000_000,
            "congestion_control": "bbr" if n == 0 else "",
            "lost_share": 0.012 if n == 0 else 0.0,
        }
        for n in range(9)
    ],
    "upload_bytes_per_second": 1.25e6,
    "download_bytes_per_second": 0.0,
    "limits": {
        "upload_mbit_s_max": 5.0,
        "download_mbit_s_max": None,
        "upload_gb_month": 100.0,
        "download_gb_month": None,
    },
    "used": {"sent_bytes": 12_300_000_000, "received_bytes": 4000},
    "readings": {
        "cpu_celsius": 61.2,
        "gpu_celsius": None,
        "power_watts": None,
        "others_cpu_share": 0.12,
        "memory_used_bytes": 2_000_000_000,
        "disk_free_bytes": 50_000_000_000,
    },
}


def test_a_round_trip_below_a_millisecond_is_not_none() -> None:
    links = [line for line in screen(REPORT).splitlines() if line.startswith("link")]
    assert ["  <1 ms  " in links[0], "  20 ms  " in links[1]] == [True, True]


def test_screen_shows_the_state_with_its_reason() -> None:
    lines = screen(REPORT).splitlines()
    assert lines[:7] == [
        "generating - 4 rollouts with version 7",
        "attic  12D3KooWabcdefgh  up 1h 2m  rollcast 0.1.0",
        "run run-1, connected to host:7443",
        "version   generating with 7; newest received 8",
        "receiving 9  [##################      ]  75%",
        "speed     1,234 tokens/s, 1,000,000 tokens since start",
        "weights   delta of 29.5 MB loaded, generation paused for 0.02 s, verified on the device",
    ]
    assert "today     40 accepted, 2 stale" in lines
    assert "up        10.0 Mbit/s measured, cap 5 Mbit/s, 12.3 GB of 100 GB this month over the internet" in lines
    assert "down      not measured yet, 4 kB this month over the internet" in lines
    assert "          and 1 more link" in lines
    assert lines[-1] == (
        "          processor 61 °C, others use 12% of the processor, memory used 2,000 MB, disk free 50.0 GB"
    )
    assert max(map(len, lines)) <= 110


def test_pause_has_an_end_and_a_new_machine_no_version() -> None:
    paused = REPORT | {
        "state": "paused",
        "reason": "paused by its owner",
        "until": "2026-11-22T12:30",
        "connected": False,
        "version_active": None,
        "version_newest": None,
        "receiving": None,
        "links": [],
    }
    lines = screen(paused).splitlines()
    assert lines[0] == "paused - paused by its owner (until 2026-11-22 12:30)"
    assert "not connected to host:7443" in lines[2]
    assert lines[3] == "version   none received yet"


def test_a_verdict_says_which_token_was_off_by_how_much_why_and_what_to_do() -> None:
    verdict = {
        "state": "quarantined",
        "reason": "sent tokens",
        "token": "token 17 of rollout 812, sampled with jax-cpu",
    }
    verdict |= {"margin_nats": 0.52, "bound_nats": 0.001, "causes": ["memory errors"], "to_do": "ask the operator"}
    lines = screen(REPORT | {"verdict": verdict}).splitlines()
    assert lines[3:7] == [
        "verdict   quarantined: sent tokens",
        "          token 17 of rollout 812, sampled with jax-cpu: 0.52 nats below the token that its seed gives, at "
        "most 0.001 are allowed",
        "          may be memory errors",
        "to do     ask the operator",
    ]


def test_a_daemon_of_an_earlier_release_reports_no_verdict() -> None:
    earlier = {key: value for key, value in REPORT.items() if key != "verdict"}
    assert screen(earlier) == screen(REPORT)


def test_newer_release_is_shown_with_its_upgrade() -> None:
    newer = {"ours": "0.1.0", "theirs": "0.2.0", "how": "let it finish, upgrade"}
    assert screen(REPORT | {"newer_release": newer}).splitlines()[-1] == (
        "release   the run uses 0.2.0, this machine 0.1.0: let it finish, upgrade"
    )
    assert "release  " not in screen(REPORT | {"newer_release": None})


def test_a_coordinator_that_is_not_reached_is_named_with_the_hop_that_fails() -> None:
    place = {
        "address": "run.example:7400",
        "hop": "name lookup",
        "reason": "no address for 'run.example'",
        "fix": "check this machine's DNS",
        "failures": 7,
        "seconds_ago": 3.0,
    }
    lines = screen({**REPORT, "connected": False, "coordinators_failing": [place]}).splitlines()
    idle = screen({**REPORT, "connected": False, "state": "idle", "reason": "no session"})
    assert idle.startswith("not connected - no session")
    assert lines[2:5] == [
        "run run-1, not connected to host:7443",
        "          name lookup of run.example:7400: no address for 'run.example' (7 tries, the last 3s ago)",
        "          fix: check this machine's DNS",
    ]


def test_screen_shows_reachability() -> None:
    lines = screen(REPORT).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("reached"))
    assert lines[at : at + 4] == [
        "reached   dialable at 192.0.2.1:7420",
        "          its router forwards the port",
        "          3 of 4 peers that tried could connect to 192.0.2.1:7420",
        "libp2p    running",
    ]
    hidden = {
        **REPORT["reach"],
        "reachability": "only outwards",
        "nat": "unknown",
        "checked": "",
        "relays": 2,
        "p2p": "",
    }
    lines = screen({**REPORT, "reach": hidden}).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("reached"))
    assert lines[at : at + 4] == [
        "reached   only outwards",
        "          this machine dials the others, which is enough to take part",
        "          others can also connect through 2 relays",
        "          `rollcast peer check` explains how to make it dialable",
    ]
