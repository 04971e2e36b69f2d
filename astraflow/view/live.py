"""The live view: what becomes of a run, drawn on a terminal, or as plain lines where there is none.

It reads and changes nothing. Watches drive it (follower.py); a terminal is drawn at most four times a second, and at
least once, since durations grow.
"""

import asyncio
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from astraflow import clock
from astraflow.bus import Bus
from astraflow.concurrency import first_of, wait_at_most
from astraflow.view.follower import Follower
from astraflow.view.live_rich import picture
from astraflow.view.live_text import silence_lines
from astraflow.view.run_view import RunView

_DRAW_EVERY_S = 0.25  # at most
_REDRAW_AFTER_S = 1.0  # at least
SILENT_S = 30.0  # at most, without a terminal


async def live_view(bus: Bus, console: Console, stop: asyncio.Event) -> None:
    """Show the run until `stop` is set. Raises BusError (in a group) if the run can't be read."""

    said = asyncio.Event()

    def print_line(line: str) -> None:
        said.set()
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    follower = await Follower.open(bus, print_line=None if console.is_terminal else print_line)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in follower.jobs()]
        if console.is_terminal:
            await _draw(follower.view, follower.changed, console, stop)
        else:
            tasks.append(group.create_task(_break_silence(follower.view, said, print_line)))
        await stop.wait()
        for task in tasks:
            task.cancel()


async def _break_silence(view: RunView, said: asyncio.Event, print_line: Callable[[str], None]) -> None:
    """Where nothing was printed for a while, say how the run is: a log that stands still may be a run that does."""
    while True:
        if not await wait_at_most(said, SILENT_S):
            for line in silence_lines(view, at=clock.wall()):
                print_line(line)
        said.clear()


async def _draw(view: RunView, changed: asyncio.Event, console: Console, stop: asyncio.Event) -> None:
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while not stop.is_set():
            changed.clear()
            live.update(picture(view, at=clock.wall()), refresh=True)
            await wait_at_most(stop, _DRAW_EVERY_S)
            await first_of(wait_at_most(changed, _REDRAW_AFTER_S - _DRAW_EVERY_S), stop.wait())
        live.update(picture(view, at=clock.wall()), refresh=True)
