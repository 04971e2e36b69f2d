"""Piped output goes on where nothing happens, and says then how the run is."""

import asyncio
import io
import itertools

from rich.console import Console

from astraflow import clock
from astraflow.bus import topology_of, wiring
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.view.live import SILENT_S, live_view
from astraflow.view.live_text import silence_lines
from tests.actors.run_in_progress import CONFIG, CREATED_AT, RECORD, everybody, member, view_of


class _Timed(io.StringIO):
    """When each line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def write(self, text: str) -> int:
        if text.strip():
            self.at.append(clock.monotonic())
        return super().write(text)


async def test_no_silence_is_longer_than_thirty_seconds(memory_server: MemoryServer) -> None:
    async with MemoryBus.connect(memory_server, topology_of(CONFIG), producer="view") as bus:
        await bus.ensure()
        await bus.kv.put(wiring.RUN.key(), RECORD)
        output, stop = _Timed(), asyncio.Event()
        began = clock.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(live_view(bus, Console(file=output, width=100), stop))
            await asyncio.sleep(200)
            await bus.event("warning", "new", "the disk is slow")
            await asyncio.sleep(100)
            stop.set()
        ended = clock.monotonic()
    times = [began, *output.at, ended]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= SILENT_S + 1
    assert output.getvalue().count("the disk is slow") == 1
    assert "solver step 0/30" in output.getvalue()
    assert "! 0 rollout nodes" in output.getvalue()


def test_it_says_how_far_the_run_is_who_waits_and_what_is_wrong() -> None:
    view = view_of(*everybody())
    assert silence_lines(view, at=CREATED_AT + 60) == ["  1 min 00 s  solver step 0/30 · nobody waits"]
    waiting = member("trainer-n-0", "trainer", policy="solver", waits_for="batch 1", waits_since=CREATED_AT + 20)
    view = view_of(*(each for each in everybody() if each.role not in ("trainer", "dataflow")), waiting)
    first, second = silence_lines(view, at=CREATED_AT + 60)
    assert first == "  1 min 00 s  solver step 0/30 · trainer solver waits for batch 1 (40 s)"
    assert second == "  1 min 00 s  ! no dataflow: no tasks are issued"
