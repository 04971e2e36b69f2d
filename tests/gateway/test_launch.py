"""Commands that are started for an episode: their answer, their errors in words, and nothing of them that stays."""

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from astraflow.errors import EnvError
from astraflow.gateway.environment import SessionEnv
from astraflow.gateway.launch import Command
from tests.gateway.world import Played, World, world
from tests.support import eventually

ASKS = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = {"model": os.environ["ASTRAFLOW_MODEL"], "messages": task["messages"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request))
"""


def line(folder: Path, script: str) -> str:
    (folder / "agent.py").write_text(script)
    return shlex.join([sys.executable, "-S", str(folder / "agent.py")])


async def play(found: World, *texts: str) -> Played:
    found.says.texts += texts
    played = Played(found)
    await played.play()
    return played


@pytest.mark.parametrize(("printed", "reward"), [("answer['choices'][0]['message']['content']", 1.0), ("'8'", 0.0)])
async def test_what_it_prints_is_its_answer(tmp_path: Path, printed: str, reward: float) -> None:
    async with world(tmp_path, command=line(tmp_path, ASKS + f"print({printed})")) as found:
        played = await play(found, "7")
    assert played.error is None
    assert played.outcome is not None
    assert dict(played.outcome.rewards) == {"solver": reward}
    assert len(found.sessions) == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('no such thing as 7')", "exited with 1: no such thing as 7"),
        ("raise ValueError('x' * 9000 + 'END')", "END"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV: it said nothing"),
        ("import os; os.close(0); os.close(1); os._exit(3)", "exited with 3"),
        ("pass", "it asked no policy"),
    ],
)
async def test_its_failure_is_the_episodes_reason(tmp_path: Path, script: str, words: str) -> None:
    async with world(tmp_path, command=line(tmp_path, script)) as found:
        played = await play(found)
    assert isinstance(played.error, EnvError)
    assert words in str(played.error)
    assert len(str(played.error)) < 5000


async def test_a_program_that_isnt_there_is_named(tmp_path: Path) -> None:
    async with world(tmp_path, command="no-such-program --now") as found:
        played = await play(found)
    assert "command 'no-such-program' can't be started: [Errno 2]" in str(played.error)


BREEDS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
open(sys.argv[0] + ".pids", "w").write(f"{os.getpid()} {child.pid}")
os.replace(sys.argv[0] + ".pids", sys.argv[0] + ".ready")
"""


def alive(pid: int) -> bool:
    """It runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("then", ["time.sleep(1000)", "", "sys.exit(1)", "os.close(1); os.close(2); time.sleep(1000)"])
async def test_nothing_of_it_outlives_its_episode(tmp_path: Path, then: str) -> None:
    async with world(tmp_path, command=line(tmp_path, BREEDS + then)) as found, asyncio.TaskGroup() as group:
        playing = group.create_task(Played(found).play())
        ready = tmp_path / "agent.py.ready"
        await eventually(ready.exists)
        pids = [int(pid) for pid in ready.read_text().split()]
        if "1000" in then:
            assert all(map(alive, pids))
            playing.cancel()  # as at the deadline
        await asyncio.wait([playing])
    await eventually(lambda: not any(map(alive, pids)))


async def test_output_without_end_is_read_and_forgotten(tmp_path: Path) -> None:
    flood = "import os\nfor _ in range(60): os.write(1, b'x' * (1 << 18)); os.write(2, b'y' * (1 << 18))\nos._exit(9)"
    async with world(tmp_path, command=line(tmp_path, flood)) as found:
        played = await play(found)
    assert str(played.error).endswith("exited with 9: " + "y" * 4000)


async def test_it_gets_no_more_than_its_own_session(tmp_path: Path) -> None:
    shown = "import json, os, sys\nopen(sys.argv[0] + '.env', 'w').write(json.dumps(dict(os.environ)))"
    async with world(tmp_path, command=line(tmp_path, shown)) as found:
        await play(found)
        text = (tmp_path / "agent.py.env").read_text()
        assert "rk-of-the-tests-only" not in text
        assert found.url in text
        assert os.environ["PATH"] in text
        assert isinstance(found.env, SessionEnv)
        assert Command("a 'b c'").arguments == ["a", "b c"]
