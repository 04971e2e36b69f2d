"""The recorder on a real server: every log entry is one line, whatever happens to the process."""

import asyncio
import json
import os
import random
import signal
import sys
from functools import cached_property
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.dataflow.store import recorded_floor
from astraflow.actors.recorder import actor as recorder
from astraflow.actors.recorder.jsonl import JsonLines
from astraflow.actors.recorder.summary import Summary, read_summary
from astraflow.bus import Bus, Cursor, EmbeddedServer, NatsBus, wiring
from astraflow.config import RecordSection
from astraflow.errors import DiskFullError
from astraflow.messages import Event, Member, MemberState, Progress, Reason
from astraflow.messages.metric_names import RECORDER_EPISODES
from astraflow.view.jsonl_lines import read_episodes, read_metrics
from tests.actors.run_in_progress import CONFIG, RECORD, episode, evaluation, member, running_bus, train
from tests.support import LIMIT_S, eventually


def cursor(sequence: int) -> Cursor:
    return Cursor(incarnation="log-1", sequence=sequence, message_id=f"m{sequence}")


class TellingContext(ActorContext):
    """Sets `waits` as soon as the actor says that it waits for something."""

    @cached_property
    def waits(self) -> asyncio.Event:
        return asyncio.Event()

    def waits_for(self, sentence: str) -> None:
        super().waits_for(sentence)
        if sentence:
            self.waits.set()


def context(bus: Bus, folder: Path) -> ActorContext:
    return ActorContext(bus=bus, config=CONFIG, record=RECORD, folder=folder, name="recorder-n-0", role="recorder")


async def drained(bus: Bus, folder: Path) -> None:
    """Run a recorder that is told to drain from the start: it records what there is."""
    ctx = context(bus, folder)
    ctx.stop("drain")
    async with asyncio.timeout(LIMIT_S):
        await recorder.run(ctx)


async def publish_episode(bus: Bus, number: int, **fields: object) -> None:
    one = episode(number, **fields)  # type: ignore[arg-type]
    await bus.publish(bus.topology.episode("sums"), one, msg_id=f"{one.task_id}@0")


def summary_in(folder: Path) -> Summary:
    summary = read_summary(folder / recorder.SUMMARY_FILE)
    assert summary is not None
    return summary


def test_a_file_and_its_position_agree_after_a_torn_write(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "x.jsonl")
    assert file.open()
    file.commit([b"1\n", b"2\n"], cursor(2))
    file.close()
    with (tmp_path / "x.jsonl").open("ab") as torn:
        torn.write(b"3\n4")  # written, but the position never followed
    again = JsonLines(tmp_path / "x.jsonl")
    assert again.open()
    assert (again.position.cursor, again.position.lines) == (cursor(2), 2)
    again.commit([b"3\n"], cursor(3))
    again.close()
    assert (tmp_path / "x.jsonl").read_bytes() == b"1\n2\n3\n"


def test_a_file_that_was_cut_or_deleted_begins_anew(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "x.jsonl")
    file.open()
    file.commit([b"1\n"], cursor(1))
    file.close()
    (tmp_path / "x.jsonl").unlink()
    again = JsonLines(tmp_path / "x.jsonl")
    assert not again.open()
    assert (again.position.cursor, again.position.size_bytes) == (None, 0)
    again.close()


def test_up_time_adds_up_over_restarts(tmp_path: Path) -> None:
    total = 0.0
    for _ in range(3):
        file = JsonLines(tmp_path / "x.jsonl")
        file.open()
        file.commit([], None)
        file.close()
        assert file.position.up_s > total
        total = file.position.up_s


def test_no_room_is_said_with_the_path_and_the_next_step() -> None:
    file = JsonLines(Path("/dev/full"))
    file._descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(DiskFullError, match=r"no room for /dev/full.*free some space"):
        file.commit([b"x\n"], cursor(1))
    file.close()


async def test_a_finished_run_is_recorded_to_the_last_word(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        trainer = member("trainer-n-0", "trainer", policy="solver")
        await bus.kv.put(wiring.MEMBER.key("trainer-n-0"), trainer)
        progress = Progress(
            policy="solver",
            consumed=2,
            step=2,
            version=2,
            epoch=1,
            finished=True,
            trained_tasks=2,
            trained_digest="d" * 64,
        )
        await bus.kv.put(wiring.PROGRESS.key("solver"), progress)
        for metrics in (evaluation(0, 0.25), train(1), train(2)):
            await bus.metrics(metrics)
        await publish_episode(bus, 0)
        await publish_episode(bus, 1, reason=Reason.GRADER)
        drawing = msgspec.structs.replace(CONFIG, record=RecordSection())
        ctx = TellingContext(bus=bus, config=drawing, record=RECORD, folder=tmp_path / "run", name="r", role="recorder")
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            task = group.create_task(recorder.run(ctx))
            ctx.stop("finished")
            await ctx.waits.wait()
            await bus.metrics(evaluation(2, 0.75))  # said after the run's end, before the trainer is gone
            await bus.event("info", "exported", "the model is in runs/demo/model")
            assert not task.done()
            await bus.kv.put(wiring.MEMBER.key("trainer-n-0"), member("trainer-n-0", "trainer", state=MemberState.GONE))
        assert [m.kind for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == ["eval", "train", "train", "eval"]
        assert [line.reason for line in read_episodes(tmp_path / "run" / "episodes.jsonl")] == ["ok", "grader"]
        events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        assert [(e["level"], e["name"]) for e in events] == [("info", "exported")]
        solver = summary_in(tmp_path / "run").policies["solver"]
        assert (solver.eval["held-out"].before.correct, solver.eval["held-out"].after.correct) == (0.25, 0.75)
        assert (solver.steps, solver.trained_tasks, solver.finished) == (2, 2, True)
        assert summary_in(tmp_path / "run").finished
        assert (tmp_path / "run" / "reward-curve.png").read_bytes().startswith(b"\x89PNG")


async def test_a_drained_recorder_writes_what_it_has_and_a_second_one_goes_on(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        for step in (1, 2):
            await bus.metrics(train(step))
            await drained(bus, tmp_path / "run")
            assert [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == list(range(1, step + 1))
        assert not summary_in(tmp_path / "run").finished
        assert not (tmp_path / "run" / "reward-curve.png").exists(), "CONFIG has record.curve = false"


async def test_the_floor_is_what_the_slowest_living_recorder_still_needs(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        assert await recorded_floor(bus) is None
        ctx = context(bus, tmp_path / "run")
        await bus.kv.put(wiring.MEMBER.key("recorder-n-0"), ctx.member())
        assert await recorded_floor(bus) == 0  # it has not said where it stands: keep everything
        await publish_episode(bus, 0)
        await publish_episode(bus, 1)
        ctx.stop("drain")
        await recorder.run(ctx)
        await bus.kv.put(wiring.MEMBER.key("recorder-n-0"), ctx.member())
        assert await recorded_floor(bus) == 2
        slow = member("recorder-m-0", "recorder", gauges={RECORDER_EPISODES: 1.0})
        await bus.kv.put(wiring.MEMBER.key("recorder-m-0"), slow)
        assert await recorded_floor(bus) == 1
        await bus.logs.purge(bus.topology.episodes, below_sequence=2)  # below the first one's own position
        await drained(bus, tmp_path / "run")
        assert lines_in(tmp_path / "run" / "events.jsonl") == 0


async def test_a_log_that_was_emptied_after_it_was_recorded_is_no_gap(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        for step in (1, 2, 3):
            await bus.metrics(train(step))
            await drained(bus, tmp_path / "run")
            await bus.logs.purge(bus.topology.metrics, below_sequence=step + 1)
        assert [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
        assert lines_in(tmp_path / "run" / "events.jsonl") == 0


async def test_entries_that_are_gone_before_they_were_recorded_are_a_warning_not_a_stop(tmp_path: Path) -> None:
    async with running_bus(tmp_path) as (_, bus):
        for step in (1, 2, 3, 4):
            await bus.metrics(train(step))
            if step == 1:
                await drained(bus, tmp_path / "run")
        await bus.logs.purge(bus.topology.metrics, below_sequence=4)
        await drained(bus, tmp_path / "run")
        assert [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 4]
        gaps = [
            e.message async for e in bus.logs.read(bus.topology.events, follow=False) if isinstance(e.message, Event)
        ]
        assert [(e.level, e.name) for e in gaps] == [("warning", "recorder-gap")]
        assert "2 entries" in gaps[0].text


async def start_process(server: EmbeddedServer, folder: Path, *, limit_bytes: int = 0) -> asyncio.subprocess.Process:
    """A recorder as a node starts it; `limit_bytes` bounds the size of files that it may write."""
    token = folder / "token"
    token.write_text(server.token)
    command = [sys.executable, "-m", "astraflow.actors", "--role", "recorder", "--name", "recorder-n-0"]
    command += ["--run", "demo", "--url", server.url, "--token-file", str(token), "--folder", str(folder / "run")]
    if limit_bytes:
        command = ["prlimit", f"--fsize={limit_bytes}:unlimited", *command]
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)


@pytest.mark.slow  # four interpreters start, one after the other
async def test_a_killed_recorder_repeats_and_skips_no_line(tmp_path: Path) -> None:
    rng = random.Random(7)
    (tmp_path / "run").mkdir()
    async with running_bus(tmp_path) as (server, bus):
        published = 0
        for _ in range(3):
            process = await start_process(server, tmp_path)
            known = published
            target = published + rng.randrange(200, 400)
            async with asyncio.timeout(LIMIT_S):
                while published < target or lines_in(tmp_path / "run" / "metrics.jsonl") <= known:
                    published += 1
                    await bus.metrics(train(published))
                    await publish_episode(bus, published)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        process = await start_process(server, tmp_path)
        async with asyncio.timeout(LIMIT_S):
            await ready(bus, process.pid)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        steps = [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")]
        assert steps == list(range(1, published + 1))
        tasks = [line.task_id for line in read_episodes(tmp_path / "run" / "episodes.jsonl")]
        assert tasks == [f"inc-1/train/0/{number}/0" for number in range(1, published + 1)]
        assert summary_in(tmp_path / "run").policies["solver"].trained_tokens == 100 * published


async def test_a_full_disk_is_an_event_and_recording_goes_on_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    metrics = tmp_path / "run" / "metrics.jsonl"
    async with running_bus(tmp_path) as (server, bus):
        process = await start_process(server, tmp_path, limit_bytes=20_000)
        async with asyncio.timeout(LIMIT_S):
            for step in range(1, 200):
                await bus.metrics(train(step))
            event = await first_event(bus, "disk-full")
            assert event.text.startswith("no room for ")
            assert "free some space there: the run goes on" in event.text
            await eventually(lambda: last_error(bus, event.text))
            await set_limit(process.pid, "unlimited")
            await eventually(lambda: lines_in(metrics) == 199)
            await eventually(lambda: last_error(bus, ""))
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert [m.step for m in read_metrics(metrics)] == list(range(1, 200))


async def test_a_drain_does_not_wait_for_room(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    async with running_bus(tmp_path) as (server, bus):
        process = await start_process(server, tmp_path, limit_bytes=20_000)
        async with asyncio.timeout(LIMIT_S):
            for step in range(1, 200):
                await bus.metrics(train(step))
            await first_event(bus, "disk-full")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 3
            assert process.stderr is not None
            assert (await process.stderr.read()).decode().splitlines()[-1].startswith("no room for ")


async def first_event(bus: Bus, name: str) -> Event:
    async for entry in bus.logs.read(bus.topology.events):
        if entry.message.name == name:
            return entry.message
    raise AssertionError


async def last_error(bus: Bus, text: str) -> bool:
    """Whether the record of the recorder says exactly this last error."""
    entry = await bus.kv.get(wiring.MEMBER.key("recorder-n-0"))
    return entry is not None and entry.message.last_error == text


async def set_limit(pid: int, limit: str) -> None:
    process = await asyncio.create_subprocess_exec("prlimit", "--pid", str(pid), f"--fsize={limit}:unlimited")
    assert await process.wait() == 0


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def ready(bus: Bus, pid: int) -> None:
    """Wait until this process says that it is ready; the record of a killed one lives on for a while."""
    async for update in bus.kv.watch(wiring.MEMBER.key("recorder-n-0")):
        if isinstance(update.message, Member) and (update.message.pid, update.message.state) == (
            pid,
            MemberState.READY,
        ):
            return


@pytest.mark.parametrize("harm", ["deleted", "emptied", "cut", "middle"])
async def test_a_log_that_lost_what_was_recorded_is_followed_from_what_it_has(tmp_path: Path, harm: str) -> None:
    async with running_bus(tmp_path) as (_, bus):
        await bus.metrics(train(1))
        await bus.metrics(train(2))
        await drained(bus, tmp_path / "run")
        assert isinstance(bus, NatsBus)
        session, stream = await bus.link.session(), bus.topology.metrics
        if harm in ("deleted", "cut"):
            await session.api(f"STREAM.DELETE.{stream}")
            await bus.ensure()
        elif harm == "emptied":
            await bus.logs.purge(stream, below_sequence=3)
        else:
            await session.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 2})
        if harm == "cut":  # as if the same stream had lost its end
            path = tmp_path / "run" / ".positions" / "metrics.jsonl.json"
            position = json.loads(path.read_bytes())
            position["cursor"]["incarnation"] = (await bus.logs.state(stream)).incarnation
            path.write_text(json.dumps(position))
        await bus.metrics(train(3))
        await drained(bus, tmp_path / "run")
        steps = [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")]
        assert steps == ([1, 2] if harm == "cut" else [1, 2, 3])
        await bus.metrics(train(4))
        await drained(bus, tmp_path / "run")
        assert [m.step for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [*steps, 4]
