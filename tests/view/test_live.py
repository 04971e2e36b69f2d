"""The live view: its picture and its lines from hand-made views, and the whole of it on a real server."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from astraflow.bus import wiring
from astraflow.messages import Event, MemberState, Metrics, Progress
from astraflow.messages.metric_names import (
    DATAFLOW,
    DATAFLOW_CORRECT_ALL,
    DATAFLOW_FAILED_ALL,
    DATAFLOW_REWARD_ALL,
    POLICY_TOKENS_PER_S,
)
from astraflow.view.live import live_view
from astraflow.view.live_rich import picture
from astraflow.view.live_text import eval_line, event_line, member_line, step_line
from astraflow.view.run_view import RunView
from tests.actors.run_in_progress import CREATED_AT, evaluation, everybody, member, running_bus, train, view_of
from tests.support import LIMIT_S

AT = CREATED_AT + 252


class Screen(io.StringIO):
    """What the view wrote; `until` waits for it without polling."""

    def __init__(self) -> None:
        super().__init__()
        self._written = asyncio.Event()

    def write(self, text: str) -> int:
        self._written.set()
        return super().write(text)

    async def until(self, shown: Callable[[str], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not shown(self.getvalue()):
                self._written.clear()
                await self._written.wait()


def drawn(view: RunView, *, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
    console.print(picture(view, at=AT))
    return console.export_text()


def test_the_picture_shows_the_run_at_a_glance() -> None:
    view = view_of(*everybody(), member("policy-n-2", "policy", policy="solver", gauges={POLICY_TOKENS_PER_S: 812.0}))
    view.apply("progress.solver", Progress(policy="solver", consumed=12, step=12, version=12, epoch=1))
    view.queues = {"task.sums": 14, "gen.solver": 0}
    for metrics in [evaluation(0, 0.13), evaluation(10, 0.62), *(train(s, reward=s / 30) for s in range(1, 13))]:
        view.history.add(metrics)
    text = drawn(view)
    for part in (
        "demo",
        "4 min 12 s",
        "step  12 / 30",
        "reward  0.40",
        "▁▂▂▃▄▄▅",
        "0.13 → 0.62",
        "812 tokens/s",
        "staleness 0.5 mean, 1 max",
        "2 replicas",
        "task.sums 14",
        "frozen",
    ):
        assert part in text, text
    assert "problems" not in text
    assert "events" not in text


def test_the_picture_shows_who_waits_what_is_missing_and_the_last_troubles() -> None:
    trainer = member("trainer-n-0", "trainer", policy="solver", waits_for="batch 1: 3 of 8 groups", waits_since=AT - 75)
    view = view_of(trainer, member("policy-n-1", "policy", policy="judge", state=MemberState.JOINING))
    view.events.extend(Event(level="warning", name="x", text=f"trouble {k}", actor="a-1", at=AT) for k in range(5))
    view.events.append(Event(level="info", name="x", text="all is well", at=AT))
    text = drawn(view)
    for part in (
        "trainer solver waits for batch 1: 3 of 8 groups   1 min 15 s",
        "0 rollout nodes",
        "no policy replica for solver",
        "starting    policy-n-1",
        "trouble 4",
        "trouble 2",
    ):
        assert part in text, text
    for part in ("trouble 1", "all is well", "no policy replica for judge"):
        assert part not in text, text


def test_the_picture_fits_a_narrow_terminal_and_a_view_without_a_run() -> None:
    lines = drawn(view_of(*everybody()), width=50).splitlines()
    assert max(len(line) for line in lines) <= 50
    assert "waiting for the run's record" in drawn(RunView())


def test_a_step_is_one_line() -> None:
    view = view_of(*everybody())
    view.history.add(evaluation(0, 0.25))
    view.history.add(train(1, reward=0.5))
    line = step_line(view, train(1, reward=0.5), seconds=None)
    assert line == (
        "        10 s  solver step 1/30 · reward 0.50 · eval correct 0.25 at step 0 · version 1 · staleness 0.5/1"
    )
    view.apply(
        "member.policy-n-0", member("policy-n-0", "policy", policy="solver", gauges={POLICY_TOKENS_PER_S: 1234.4})
    )
    everything = {DATAFLOW_REWARD_ALL: 0.4, DATAFLOW_CORRECT_ALL: 0.3}
    view.history.add(Metrics(kind=DATAFLOW, at=AT, policy="solver", step=1, batch=2, values=everything))
    line = step_line(view, train(2, skipped=1.0), seconds=3.4)
    assert "reward 0.40 · correct 0.30 · version 2 · " in line
    assert line.endswith("staleness 0.5/1 · 1,234 tokens/s · 3.4 s · SKIPPED")
    everything[DATAFLOW_FAILED_ALL] = 3.0
    view.history.add(Metrics(kind=DATAFLOW, at=AT, policy="solver", step=1, batch=2, values=everything))
    assert "reward 0.40 (3 failed) · correct 0.30" in step_line(view, train(2), seconds=None)
    assert "reward 0.50 · eval" in step_line(view, train(3), seconds=None)  # dataflow said nothing of batch 3


def test_other_news_are_one_line_each() -> None:
    view = view_of()
    view.history.add(evaluation(10, 0.5))
    assert eval_line(view, evaluation(10, 0.5)) == (
        "  1 min 41 s  solver evaluation held-out at step 10 · correct 0.50 · reward 0.60 · 64 answers"
    )
    held = evaluation(10, 0.5)
    held = msgspec.structs.replace(held, values={**held.values, "eval.failed": 19.0})
    view.history.add(held)
    assert eval_line(view, held).endswith("correct 0.50 · reward 0.60 · 64 answers (19 failed)")
    event = Event(level="error", name="x", text="disk [full]", actor="recorder-n-0", at=AT)
    assert event_line(view, event) == "  4 min 12 s  error · recorder-n-0: disk [full]"
    state = member("policy-n-0", "policy", state=MemberState.CATCHING_UP)
    assert member_line(view, state, at=AT) == "  4 min 12 s  policy-n-0 is catching up"


async def test_without_a_terminal_only_news_are_printed_one_line_each(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus), asyncio.TaskGroup() as group:
        await bus.metrics(train(1))
        await bus.event("error", "old", "from before")
        screen, stop = Screen(), asyncio.Event()
        console = Console(file=screen, width=60)
        group.create_task(live_view(bus, console, stop))
        await bus.kv.put(wiring.MEMBER.key("trainer-n-0"), member("trainer-n-0", "trainer", policy="solver"))
        await screen.until(lambda text: "trainer-n-0 is ready" in text)
        await bus.metrics(train(2))
        await bus.metrics(evaluation(2, 0.5))
        await screen.until(lambda text: "evaluation" in text)
        await bus.event("info", "calm", "nothing to see")
        await bus.event("warning", "new", "the disk is slow")
        await screen.until(lambda text: "slow" in text)
        stop.set()
    lines = screen.getvalue().splitlines()
    assert [line for line in lines if "step 2/30" in line] == [
        "        20 s  solver step 2/30 · reward 0.50 · version 2 · staleness 0.5/1 · 10 s"
    ]
    assert sum("evaluation held-out at step 2 · correct 0.50" in line for line in lines) == 1
    assert sum(line.endswith("warning · test: the disk is slow") for line in lines) == 1
    for part in ("step 1/30", "from before", "nothing to see"):
        assert part not in screen.getvalue()


async def test_on_a_terminal_the_picture_follows_the_run(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus), asyncio.TaskGroup() as group:
        screen, stop = Screen(), asyncio.Event()
        console = Console(file=screen, width=100, height=40, force_terminal=True, color_system=None)
        group.create_task(live_view(bus, console, stop))
        await screen.until(lambda text: "step   0 / 30" in text)
        for one in everybody():
            await bus.kv.put(wiring.MEMBER.key(one.actor), one)
        await bus.kv.put(
            wiring.PROGRESS.key("solver"), Progress(policy="solver", consumed=1, step=1, version=1, epoch=1)
        )
        await bus.metrics(train(1, reward=0.25))
        await screen.until(lambda text: "step   1 / 30" in text and "reward  0.25" in text)
        stop.set()
    last = screen.getvalue().rpartition("demo")[2]
    assert "no trainer" not in last
    assert "2 replicas" not in last
