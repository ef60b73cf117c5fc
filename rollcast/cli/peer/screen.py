"""Format the report of this machine (peer.donor.report) as one screen of plain text: rich loads too slowly."""

from __future__ import annotations

from typing import Any

from rollcast.cli.durations import in_words

_BAR = 24
_LINKS_SHOWN = 8


def screen(report: dict[str, Any]) -> str:
    """Return the screen, with lines of at most about 100 characters."""
    parts = (_head, _verdict, _version, _work, _network, _machine, _release)
    return "\n".join(line for part in parts for line in part(report))


def _head(report: dict[str, Any]) -> list[str]:
    reason = f" - {report['reason']}" if report["reason"] else ""
    has_until = " until " in report["reason"]
    until = f" (until {report['until'].replace('T', ' ')})" if report["until"] and not has_until else ""
    session = "connected to" if report["connected"] else "not connected to"
    return [
        f"{_state(report)}{reason}{until}",
        f"{report['name']}  {report['peer_id']}  up {in_words(report['uptime_s'])}  {report['software']}",
        f"run {report['run_id']}, {session} {report['coordinator']}",
        # A daemon of an earlier release does not report it.
        *(line for place in report.get("coordinators_failing", ()) for line in _failing(place)),
    ]


def _state(report: dict[str, Any]) -> str:
    if report["state"] != "idle":
        return str(report["state"])
    return "ready" if report["connected"] else "not connected"


def _failing(place: dict[str, Any]) -> list[str]:
    tries = f"{place['failures']} tries, the last {in_words(place['seconds_ago'])} ago"
    return [
        f"          {place['hop']} of {place['address']}: {place['reason']} ({tries})",
        f"          fix: {place['fix']}",
    ]


def _verdict(report: dict[str, Any]) -> list[str]:
    verdict = report.get("verdict")  # a daemon of an earlier release does not report it
    if verdict is None:
        return []
    lines = [f"verdict   {verdict['state']}: {verdict['reason']}"]
    if verdict["token"]:
        lines.append(
            f"          {verdict['token']}: {verdict['margin_nats']:.3g} nats below the token that its seed gives, "
            f"at most {verdict['bound_nats']:.3g} are allowed"
        )
    lines += [f"          may be {one}" for one in verdict["causes"]]
    return [*lines, f"to do     {verdict['to_do']}"]


def _release(report: dict[str, Any]) -> list[str]:
    newer = report.get("newer_release")  # a daemon of an earlier release does not report it
    return (
        []
        if newer is None
        else [f"release   the run uses {newer['theirs']}, this machine {newer['ours']}: {newer['how']}"]
    )


def _version(report: dict[str, Any]) -> list[str]:
    active, newest = report["version_active"], report["version_newest"]
    generates = "not generating yet" if active is None else f"generating with {active}"
    line = f"version   {generates}; newest received {newest}" if newest is not None else "version   none received yet"
    receiving = report["receiving"]
    if receiving is None:
        return [line]
    share = receiving["chunks_have"] / receiving["chunks_total"]
    bar = "#" * round(share * _BAR)
    return [line, f"receiving {receiving['version']}  [{bar:<{_BAR}}] {share:4.0%}"]


def _work(report: dict[str, Any]) -> list[str]:
    speed = f"speed     {report['tokens_per_second']:,.0f} tokens/s, {report['tokens_generated']:,} tokens since start"
    return [
        speed,
        *_swap(report["swap"]),
        f"today     {_verdicts(report['today'])}",
        f"in all    {_verdicts(report['total'])}",
    ]


def _swap(swap: dict[str, Any] | None) -> list[str]:
    if swap is None:
        return []
    proof = "verified on the device" if swap["read_back"] else "verified before loading"
    paused = f"generation paused for {swap['paused_s']:.2f} s"
    return [f"weights   {swap['kind']} of {_size(swap['moved_bytes'])} loaded, {paused}, {proof}"]


def _verdicts(counts: dict[str, int]) -> str:
    others = [f"{count:,} {verdict}" for verdict, count in sorted(counts.items()) if verdict != "accepted"]
    return ", ".join([f"{counts.get('accepted', 0):,} accepted", *others])


def _network(report: dict[str, Any]) -> list[str]:
    limits, used = report["limits"], report["used"]
    lines = [
        f"up        {_rate(report['upload_bytes_per_second'], limits['upload_mbit_s_max'])}"
        f", {_quota(used['sent_bytes'], limits['upload_gb_month'])}",
        f"down      {_rate(report['download_bytes_per_second'], limits['download_mbit_s_max'])}"
        f", {_quota(used['received_bytes'], limits['download_gb_month'])}",
    ]
    links = report["links"]
    lines += _reached(report["reach"])
    for link in links[:_LINKS_SHOWN]:
        rtt = _round_trip(link["rtt_s"])
        moved = f"sent {_size(link['bytes_sent'])}, received {_size(link['bytes_received'])}"
        tcp = f"  {link['congestion_control']}" if link["congestion_control"] else ""
        lost = f"  {link['lost_share']:.1%} lost" if link["lost_share"] else ""
        lines.append(f"link      {link['peer_id'][-12:]}  {link['path']}  {rtt}  {moved}{tcp}{lost}")
    if (more := len(links) - _LINKS_SHOWN) > 0:
        lines.append(f"          and {more} more link{'' if more == 1 else 's'}")
    return lines


def _round_trip(seconds: float) -> str:
    if not seconds:
        return "- ms"
    return "<1 ms" if seconds < 0.0005 else f"{seconds * 1000:.0f} ms"


def _reached(reach: dict[str, Any]) -> list[str]:
    """Return lines on how other machines reach this one, its NAT, and the result of dialing its address."""
    dialable = reach["reachability"] == "dialable"
    where = f" at {reach['address'].partition(' ')[0]}" if dialable else ""
    lines = [f"reached   {reach['reachability']}{where}"]
    if reach["reachability"] == "only outwards":
        lines.append("          this machine dials the others, which is enough to take part")
    if reach["nat"] not in ("open", "unknown"):
        lines += [f"          {one}" for one in reach["nat_means"].split("; ")]
    if reach["checked"]:
        lines.append(f"          {reach['checked']}")
    if reach["relays"]:
        lines.append(
            f"          others can also connect through {reach['relays']} relay{'' if reach['relays'] == 1 else 's'}"
        )
    if not dialable:
        lines.append("          `rollcast peer check` explains how to make it dialable")
    if reach["p2p"]:
        lines.append(f"libp2p    {reach['p2p']}")
    return lines


def _rate(bytes_per_second: float, cap_mbit_s: float | None) -> str:
    measured = f"{bytes_per_second * 8e-6:.1f} Mbit/s measured" if bytes_per_second else "not measured yet"
    return measured if cap_mbit_s is None else f"{measured}, cap {cap_mbit_s:g} Mbit/s"


def _quota(used_bytes: int, limit_gb: float | None) -> str:
    quota = "" if limit_gb is None else f" of {limit_gb:g} GB"
    return f"{_size(used_bytes)}{quota} this month over the internet"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1000.0:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000.0
    return f"{size_bytes:,.1f} GB"


def _machine(report: dict[str, Any]) -> list[str]:
    readings = report["readings"]
    parts = [
        _reading("processor", readings["cpu_celsius"], "{:.0f} °C"),
        _reading("accelerator", readings["gpu_celsius"], "{:.0f} °C"),
        _reading("power", readings["power_watts"], "{:.0f} W"),
        _reading("others use", readings["others_cpu_share"], "{:.0%} of the processor"),
        _reading("memory used", readings["memory_used_bytes"], "{:,.0f} MB", 1e-6),
        _reading("disk free", readings["disk_free_bytes"], "{:,.1f} GB", 1e-9),
    ]
    said = ", ".join(part for part in parts if part)
    return [f"machine   {report['hardware']}"] + ([f"          {said}"] if said else [])


def _reading(what: str, value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else f"{what} {form.format(value * scale)}"
