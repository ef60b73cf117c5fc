"""Take the documentation's pictures again: ``python -m bench.people.screenshots``.

The dashboard's pictures are of a simulated fleet behind the real HTTP side (bench/people/dashboard_fleet.py); the
owner's page is that of a peer in a real run of configs/local.toml on this machine. Chromium takes the pictures.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from rollcast.runtime.errors import DaemonAway, WaitTimedOut
from rollcast.runtime.waits import deadline
from rollcast.wire.donor.control_socket import request

ROOT = Path(__file__).parents[2]
BYTES_MAX = 200_000
_PLAIN = Image.Dither.NONE
WIDE, NARROW = 1440, 390
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
_START_S = 300.0
_SETTLE_MS = 4_000  # by then a page has its first updates
_LIVES_S = 150.0  # the fleet runs this long before the first picture, for its series to have samples
_ACCEPTED = 2000  # accepted rollouts of a peer before its owner's page is taken


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page.

    Args:
        shows: selector of an element that exists once the page has data.
        height: height of the window in pixels.
    """

    name: str
    page: str
    shows: str
    width: int = WIDE
    height: int = 900
    scheme: str = "light"


DASHBOARD = (
    Picture("overview", "overview", ".chart canvas", height=1000),
    Picture("workers", "workers?sort=seen&down=1", ".vt-body .vt-row", scheme="dark"),
    Picture("broadcast", "broadcast", ".tree .held", height=1180),
    Picture("run", "run", ".chart canvas", height=1000),
    Picture("capacity", "capacity?sort=on&down=0", ".who .vt-row", scheme="dark"),
    Picture("narrow", "overview", ".overview-tiles .tile", width=NARROW, height=844),
)
DONOR = (Picture("donor", "now", ".state-card.tone-good", width=1180, height=1000),)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.people.screenshots", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--workers", type=int, default=90)
    parser.add_argument("--warm-up", type=float, default=600.0, help="virtual seconds that the fleet runs first")
    parser.add_argument("--only", choices=("dashboard", "donor"), help="take only these pictures")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    asyncio.run(_make(arguments))


async def _make(arguments: argparse.Namespace) -> None:
    from playwright.async_api import async_playwright  # an optional dependency that only this program needs

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        if arguments.only != "donor":
            async with _fleet(arguments) as url:
                await asyncio.sleep(_LIVES_S)
                await _take(browser, url, DASHBOARD, arguments.into)
        if arguments.only != "dashboard":
            async with _donor() as url:
                await _take(browser, url, DONOR, arguments.into)
        await browser.close()


async def _take(browser: Any, url: str, pictures: Sequence[Picture], into: Path) -> None:
    """Take each picture in a window of its own."""
    for picture in pictures:
        viewport = {"width": picture.width, "height": picture.height}
        context = await browser.new_context(
            viewport=viewport, color_scheme=picture.scheme, reduced_motion="reduce", device_scale_factor=1
        )
        page = await context.new_page()
        await page.goto(url)
        await page.wait_for_selector("main h1")  # by then the page has removed the token from its address
        await page.evaluate("page => { location.hash = '#/' + page; }", picture.page)
        await page.wait_for_selector(picture.shows)
        await page.wait_for_timeout(_SETTLE_MS)
        await page.wait_for_selector(picture.shows)  # an update may have removed it for a moment
        path = into / f"{picture.name}.png"
        path.write_bytes(small(await page.screenshot()))
        await context.close()
        print(f"{path}: {path.stat().st_size / 1000:.0f} KB", flush=True)


def small(png: bytes, bytes_max: int = BYTES_MAX) -> bytes:
    """Return the same picture as a PNG of at most ``bytes_max``, with fewer colours only if needed.

    Raises:
        ValueError: it is larger even with the fewest colours.
    """
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (None, 256, 128, 64):
        written = io.BytesIO()
        shown = picture if colours is None else picture.quantize(palette=_palette(picture, colours), dither=_PLAIN)
        shown.save(written, "PNG", optimize=True)
        if len(written.getvalue()) <= bytes_max:
            return written.getvalue()
    raise ValueError(f"a picture of {len(written.getvalue())} bytes is too large for the documentation")


def _palette(picture: Image.Image, colours: int) -> Image.Image:
    """Return a palette, half the most common colours, half from all others however rare: a thin red line stays red."""
    size = picture.width * picture.height
    by_count: Any = sorted(picture.getcolors(size) or (), reverse=True)
    common = [colour for _, colour in by_count[: colours // 2]]
    rest = [colour for _, colour in by_count[colours // 2 :]] or common
    others = Image.frombytes("RGB", (len(rest), 1), bytes(value for colour in rest for value in colour))
    mixed = others.quantize(colours - len(common), dither=_PLAIN).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in common for value in colour] + mixed)
    return palette


# ---------------------------------------------------------------- what is shown


@asynccontextmanager
async def _program(*arguments: str, cwd: Path, stdout: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Python with these arguments until the end of the block, then interrupt it so that it ends its children."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=cwd, env=environment, stdout=stdout)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
        await child.wait()


@asynccontextmanager
async def _fleet(arguments: argparse.Namespace) -> AsyncIterator[str]:
    """Run a simulated fleet; yields its page's address with the operator's key."""
    options = ("--workers", str(arguments.workers), "--port", "0", "--warm-up", str(arguments.warm_up))
    async with _program("-m", "bench.people.dashboard_fleet", *options, cwd=ROOT, stdout=PIPE) as child:
        assert child.stdout is not None
        async with deadline(_START_S, "the fleet to print its address"):
            line = await child.stdout.readline()
        if not line:
            raise RuntimeError("the fleet did not start: see its messages above")
        yield line.decode().strip()


@asynccontextmanager
async def _donor() -> AsyncIterator[str]:
    """Run a real run; yields the address of the owner's page of a peer that works in it."""
    with tempfile.TemporaryDirectory() as folder:
        config = str(ROOT / "configs" / "local.toml")
        options = ("--plain", "--set", "coordinator.run.steps=5000", "--set", "coordinator.serve.http_port=0")
        async with _program(
            "-m", "rollcast.cli.main", "up", config, *options, cwd=Path(folder), stdout=DEVNULL
        ) as child:
            async with deadline(_START_S, "a peer of the run to have made rollouts"):
                url = await _page_of_a_worker(Path(folder), child)
            yield url


async def _page_of_a_worker(folder: Path, run: asyncio.subprocess.Process) -> str:
    """Return the address of the owner's page of the first peer with ``_ACCEPTED`` accepted rollouts today."""
    while run.returncode is None:
        for number in range(1, 4):
            state_folder = folder / "runs" / "latest" / "peers" / f"peer-{number}"
            try:
                report = await asyncio.to_thread(request, state_folder, {"do": "status"})
                if report["today"].get("accepted", 0) >= _ACCEPTED:
                    return str((await asyncio.to_thread(request, state_folder, {"do": "page"}))["url"])
            except (DaemonAway, WaitTimedOut):  # the peer is starting or compiling
                continue
        await asyncio.sleep(1.0)
    raise RuntimeError("the run ended: see its messages above")


if __name__ == "__main__":
    main()
