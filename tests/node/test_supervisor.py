"""The supervisor with real child processes: small Python scripts that crash, refuse, linger or obey."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.actors.base.exits import describe_exit, last_lines
from astraflow.lifeline import EXIT_TOGETHER
from astraflow.node.child import ProcessSpec
from astraflow.node.supervisor import Failure, Supervisor
from tests.support import AT_ONCE_S, eventually

OBEDIENT = """
import signal, sys, time
def leave(*_):
    print("leaving", time.monotonic_ns(), flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: signal.pause()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
"""
CRASHING = "import sys; print('boom', file=sys.stderr); sys.exit(1)"
MISTAKEN = "import sys; print('noise'); print('policies.x.model: no such folder', file=sys.stderr); sys.exit(3)"


async def resume_never(_: ProcessSpec) -> bool:
    return False


class Nursery:
    """Makes specs and supervisors in one folder and remembers what was reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []

    def spec(self, name: str, script: str, *arguments: str, stage: int = 0) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            command=(sys.executable, "-u", "-c", script, *arguments),
            environment=dict(os.environ),
            log_file=self.log(name),
            stage=stage,
        )

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def supervisor(
        self, *specs: ProcessSpec, grace_s: float = 10.0, max_restarts: int = 3, **options: object
    ) -> Supervisor:
        options.setdefault("resume", resume_never)
        return Supervisor(
            specs,
            grace_s=grace_s,
            max_restarts=max_restarts,
            report=self.reports.append,
            first_backoff_s=0.01,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def nursery(tmp_path: Path) -> Nursery:
    return Nursery(tmp_path)


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[asyncio.Task[Failure | None]]:
    async with asyncio.TaskGroup() as group:
        yield group.create_task(supervisor.run())


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def test_processes_that_end_by_themselves_end_the_run_well(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", "print('one')"), nursery.spec("b", "print('two')"))
    assert await supervisor.run() is None
    assert (text_of(nursery.log("a")), text_of(nursery.log("b"))) == ("one\n", "two\n")


async def test_crash_loop_fails_after_max_restarts(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", CRASHING), nursery.spec("b", OBEDIENT), max_restarts=3)
    failure = await supervisor.run()
    assert failure is not None
    assert (failure.process, failure.told) == ("a", False)
    assert failure.text == "ended with exit code 1 after 3 restarts"
    assert text_of(nursery.log("a")).count("boom") == 4
    assert last_lines(failure.log_file, 2) == ["boom", "boom"]


ALIKE = "import sys; print('Traceback'); print('ValueError: no luck', file=sys.stderr); sys.exit(6)"
UNLIKE = """
import os, sys
count = os.path.getsize(sys.argv[1]) if os.path.exists(sys.argv[1]) else 0
open(sys.argv[1], "a").write("x")
print(f"ValueError: {count}", file=sys.stderr)
sys.exit(6)
"""
THEN_KILLED = """
import os, signal, sys
count = os.path.getsize(sys.argv[1]) if os.path.exists(sys.argv[1]) else 0
open(sys.argv[1], "a").write("x")
print("ValueError: no luck", file=sys.stderr, flush=True)
if count % 2:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(6)
"""


async def test_one_that_fails_alike_three_times_as_it_begins_ends_the_whole_with_its_reason(nursery: Nursery) -> None:
    told: list[Failure] = []

    async def tell(failure: Failure) -> None:
        assert supervisor.pids().keys() == {"b"}  # nothing is drained yet
        told.append(failure)

    supervisor = nursery.supervisor(nursery.spec("a", ALIKE), nursery.spec("b", OBEDIENT), max_restarts=10, tell=tell)
    failure = await supervisor.run()
    assert failure is not None
    assert (failure.text, failure.told) == ("failed 3 times alike as it began: ValueError: no luck", True)
    assert text_of(nursery.log("a")).count("no luck") == 3
    assert told == [failure]
    report = f"a ended with exit code 6: ValueError: no luck; see {nursery.log('a')}"
    assert nursery.reports == [report, report]


@pytest.mark.parametrize("script", [UNLIKE, THEN_KILLED], ids=["another reason each time", "killed in between"])
async def test_what_does_not_fail_alike_is_started_as_often_as_allowed(nursery: Nursery, script: str) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", script, str(nursery.folder / "count")), max_restarts=5)
    failure = await supervisor.run()
    assert failure is not None
    assert "after 5 restarts" in failure.text
    assert (nursery.folder / "count").read_text() == "x" * 6


async def test_a_process_that_ended_with_its_ranks_is_started_again_and_its_last_line_told(nursery: Nursery) -> None:
    told: list[str] = []

    async def tell(text: str) -> None:
        told.append(text)

    script = f"print('rank 1 of 2 is gone'); raise SystemExit({EXIT_TOGETHER})"
    failure = await nursery.supervisor(nursery.spec("a", script), max_restarts=1, ranks_lost=tell).run()
    assert failure is not None
    assert told == ["a starts again with its ranks: rank 1 of 2 is gone"] * 2
    assert not nursery.reports


async def test_a_users_mistake_is_not_restarted(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", MISTAKEN), nursery.spec("b", OBEDIENT))
    failure = await supervisor.run()
    assert failure is not None
    assert (failure.told, failure.text) == (True, "policies.x.model: no such folder")
    assert text_of(nursery.log("a")).count("noise") == 1
    assert supervisor.pids() == {}


async def test_one_that_stays_takes_more_processes_and_outlives_their_failures(nursery: Nursery) -> None:
    failures: list[Failure] = []
    supervisor = nursery.supervisor(stays=failures.append, max_restarts=0)
    async with running(supervisor) as outcome:
        await eventually(lambda: supervisor._keepers is not None)
        supervisor.add(nursery.spec("bad", MISTAKEN))
        supervisor.add(nursery.spec("good", OBEDIENT))
        await eventually(lambda: "ready" in text_of(nursery.log("good")) and supervisor.names() == ["good"])
        assert [failure.process for failure in failures] == ["bad"]
        assert supervisor.drain_one("good")
        await eventually(lambda: supervisor.pids() == {})
        assert (supervisor.names(), supervisor.drained(), outcome.done()) == ([], ["good"], False)
        supervisor.close()
        failure = await outcome
    assert failure is not None
    assert failure.process == "bad"  # the node's exit code says so in the end
    supervisor.add(nursery.spec("late", OBEDIENT))
    assert supervisor.names() == []


async def test_a_killed_process_is_restarted(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", OBEDIENT))
    async with running(supervisor) as outcome:
        await eventually(lambda: text_of(nursery.log("a")).count("ready") == 1)
        first = supervisor.pids()["a"]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: text_of(nursery.log("a")).count("ready") == 2)
        assert supervisor.pids()["a"] != first
        supervisor.drain()
        assert await outcome is None
    assert nursery.reports == [f"a was killed by SIGKILL; see {nursery.log('a')}"]


async def test_drain_goes_stage_by_stage(nursery: Nursery) -> None:
    specs = [nursery.spec(name, OBEDIENT, stage=stage) for name, stage in (("last", 2), ("first", 0), ("middle", 1))]
    supervisor = nursery.supervisor(*specs)
    async with running(supervisor) as outcome:
        await eventually(lambda: all("ready" in text_of(spec.log_file) for spec in specs))
        supervisor.drain()
        assert await outcome is None
    left_at = {spec.name: int(text_of(spec.log_file).split()[-1]) for spec in specs}
    assert sorted(left_at, key=left_at.__getitem__) == ["first", "middle", "last"]


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_time(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", STUBBORN), grace_s=0.2)
    async with running(supervisor) as outcome:
        await eventually(lambda: "ready" in text_of(nursery.log("a")))
        supervisor.drain()
        assert await outcome is None
    assert nursery.reports == ["a didn't end within 0.2 s; killed"]


async def test_kill_doesnt_wait_for_the_grace_time(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", STUBBORN), grace_s=100)
    async with running(supervisor) as outcome:
        await eventually(lambda: "ready" in text_of(nursery.log("a")))
        supervisor.drain()
        supervisor.kill()
        async with asyncio.timeout(AT_ONCE_S):
            await outcome


async def test_drain_interrupts_a_backoff(nursery: Nursery) -> None:
    supervisor = Supervisor(
        [nursery.spec("a", CRASHING)],
        grace_s=10,
        max_restarts=100,
        resume=resume_never,
        report=nursery.reports.append,
        first_backoff_s=60.0,
    )
    async with running(supervisor) as outcome:
        await eventually(lambda: bool(nursery.reports))
        supervisor.drain()
        async with asyncio.timeout(AT_ONCE_S):
            assert await outcome is None


async def test_an_early_clean_exit_is_restarted_if_the_run_still_needs_it(nursery: Nursery) -> None:
    answers = iter([True, True, False])

    async def resume(_: ProcessSpec) -> bool:
        return next(answers)

    supervisor = nursery.supervisor(nursery.spec("a", "print('hello')"), resume=resume)
    assert await supervisor.run() is None
    assert text_of(nursery.log("a")).count("hello") == 3


async def test_cancelling_leaves_no_child_behind(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", STUBBORN))
    async with running(supervisor) as outcome:
        await eventually(lambda: "ready" in text_of(nursery.log("a")))
        pid = supervisor.pids()["a"]
        outcome.cancel()
    await eventually(lambda: not alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux only")
async def test_children_die_with_a_killed_parent(nursery: Nursery) -> None:
    script = f"""
import asyncio, os, sys
from pathlib import Path
from astraflow.node.child import ProcessSpec
from astraflow.node.supervisor import Supervisor
async def never(_): return False
spec = ProcessSpec(name="a", command=(sys.executable, "-u", "-c", {STUBBORN!r}), environment=dict(os.environ),
                   log_file=Path({str(nursery.log("a"))!r}))
supervisor = Supervisor([spec], grace_s=9, max_restarts=0, resume=never, report=print)
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        while not supervisor.pids(): await asyncio.sleep(0.01)
        Path({str(nursery.folder / "pid")!r}).write_text(str(supervisor.pids()["a"]) + "\\n")
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    try:
        await eventually(lambda: "ready" in text_of(nursery.log("a")))
        await eventually(lambda: text_of(nursery.folder / "pid").endswith("\n"))
        pid = int(text_of(nursery.folder / "pid"))
        assert alive(pid)
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaps doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "ended with exit code 1"), (-9, "was killed by SIGKILL"), (-200, "was killed by signal 200")],
)
def test_exits_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


async def test_one_drained_process_leaves_for_good_and_the_rest_goes_on(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", OBEDIENT), nursery.spec("b", OBEDIENT))
    async with running(supervisor) as outcome:
        await eventually(lambda: "ready" in text_of(nursery.log("a")) and "ready" in text_of(nursery.log("b")))
        assert supervisor.drain_one("a")
        assert not supervisor.drain_one("nobody")
        await eventually(lambda: list(supervisor.pids()) == ["b"])
        assert not supervisor.drain_one("a")
        supervisor.drain()
        assert await outcome is None
    assert text_of(nursery.log("a")).count("ready") == 1


async def test_one_drained_process_that_ignores_it_is_killed(nursery: Nursery) -> None:
    supervisor = nursery.supervisor(nursery.spec("a", STUBBORN), nursery.spec("b", OBEDIENT), grace_s=0.2)
    async with running(supervisor) as outcome:
        await eventually(lambda: "ready" in text_of(nursery.log("a")))
        assert supervisor.drain_one("a")
        await eventually(lambda: nursery.reports == ["a didn't end within 0.2 s; killed"])
        supervisor.drain()
        assert await outcome is None


async def test_the_stages_of_a_drain_share_the_grace_time(nursery: Nursery) -> None:
    specs = [nursery.spec(name, STUBBORN, stage=stage) for stage, name in enumerate("abcd")]
    supervisor = nursery.supervisor(*specs, grace_s=2.0)
    async with running(supervisor) as outcome:
        await eventually(lambda: all("ready" in text_of(nursery.log(name)) for name in "abcd"))
        started = time.monotonic()
        supervisor.drain()
        assert await outcome is None
    assert 1.9 < time.monotonic() - started < 4 * 2.0, "one grace time, not one for each stage"
    assert [report[0] for report in nursery.reports] == list("abcd")


async def test_a_process_is_started_again_only_when_it_can_be(nursery: Nursery) -> None:
    server_is_back = asyncio.Event()
    supervisor = nursery.supervisor(nursery.spec("a", CRASHING), max_restarts=1, startable=server_is_back.wait)
    async with running(supervisor) as outcome:
        await eventually(lambda: len(nursery.reports) == 1)
        assert not outcome.done()
        server_is_back.set()
        failure = await outcome
    assert failure is not None


async def test_a_drain_interrupts_the_question_whether_to_start_again(nursery: Nursery) -> None:
    asked = asyncio.Event()

    async def never_answered(_: ProcessSpec) -> bool:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    supervisor = nursery.supervisor(nursery.spec("a", "print('hello')"), resume=never_answered)
    async with running(supervisor) as outcome:
        await asked.wait()
        supervisor.drain()
        assert await outcome is None


async def test_with_less_time_than_the_grace_all_are_told_at_once(nursery: Nursery) -> None:
    stubborn, last = nursery.spec("a", STUBBORN, stage=0), nursery.spec("b", OBEDIENT, stage=1)
    supervisor = nursery.supervisor(stubborn, last, grace_s=1000)
    async with running(supervisor) as outcome:
        await eventually(lambda: text_of(nursery.log("a")) == text_of(nursery.log("b")) == "ready\n")
        supervisor.drain(within_s=0.5)
        supervisor.drain(within_s=1000)  # what is said first holds
        await eventually(lambda: "leaving" in text_of(nursery.log("b")))
    assert outcome.result() is None
    assert nursery.reports == ["a didn't end within 0.5 s; killed"]


async def test_a_notice_that_every_process_gets_kills_none(nursery: Nursery) -> None:
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-u', '-c', sys.argv[1]])"
    with_child = nursery.spec("a", parent, "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('lives')")
    assert await nursery.supervisor(with_child).run() is None
    assert text_of(nursery.log("a")) == "lives\n"
