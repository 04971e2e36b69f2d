"""Agents in real runs: every example plays, an agent joins from its own file, a script watches."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest

import astraflow as af
from astraflow.actors.base.connection import Connection
from astraflow.ports import free_port
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, TOY, sets, started, write_toy
from tests.e2e.liverun import connection_to

T = TypeVar("T")
EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
POLICY = """
[policies.{name}]
model = "toy"
engine = {{ kind = "toy" }}

[policies.{name}.trainer]
steps = 2
learner = "toy"
batch_groups = 2
filters = []
"""
ENV = """
[envs.{env}]
kind = "tiny"
args = {{ task = "add" }}
agent = "{module}:{function}"
{roles}

[sources.{env}]
env = "{env}"
group_size = 2
"""


def roles_of(**policies: str) -> str:
    return "roles = { " + ", ".join(f'{role} = "{policy}"' for role, policy in policies.items()) + " }"


AGENTS = {
    "verify": ("solve_and_verify", "solve_and_verify", "", {"solver", "verifier"}),
    "plan": (
        "plan_and_solve",
        "plan_and_solve",
        'roles = { planner = "solver", doer = "solver" }',
        {"planner", "doer"},
    ),
    "code": (
        "code_and_tests",
        "code_and_tests",
        'roles = { coder = "solver", tester = "verifier" }',
        {"coder", "tester"},
    ),
    "router": ("router", "route", 'roles = { small = "solver", large = "verifier" }', {"small"}),
    "divide": ("recursive", "divide", 'roles = { solver = "solver" }', {"solver"}),
    "game": ("self_play", "play", 'roles = { left = "solver", right = "verifier" }', {"left", "right"}),
}


def run_file() -> str:
    """Two toy policies, and an environment for every example."""
    parts = ['[run]\nname = "demo"\n', *(POLICY.format(name=name) for name in ("solver", "verifier"))]
    for env, (module, function, roles, _) in AGENTS.items():
        parts.append(ENV.format(env=env, module=module, function=function, roles=roles))
    return "".join(parts)


async def test_every_example_agent_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=":")
    file = write_toy(tmp_path, run_file())
    more = sets("policies.solver.trainer.steps=100000", "policies.verifier.trainer.steps=100000")
    async with started(tmp_path, "up", str(file), *more) as command:
        await command.expect("step 2")
        roles = await roles_by_env(tmp_path / "runs" / "demo")
        command.process.terminate()
        await command.end()
    for env, (*_, expected) in AGENTS.items():
        assert expected <= roles[env], (env, roles[env])


async def roles_by_env(folder: Path) -> dict[str, set[str]]:
    """Roles (or policies) that had a trajectory, until every environment has had an episode of reason ok."""
    found: dict[str, set[str]] = {}
    connection = connection_to(folder)
    async with (
        af.connect(connection.url, run="demo", token_file=connection.token_file) as run,
        aclosing(run.episodes(start="first")) as episodes,
    ):
        async for episode in episodes:
            assert episode.reason in ("ok", "truncated"), episode
            found.setdefault(episode.env, set()).update(each.role or each.policy for each in episode.trajectories)
            if all(AGENTS[env][3] <= found.get(env, set()) for env in AGENTS):
                break
    return found


JOINING = """
import astraflow as af

@af.agent(env="game")
async def shout(task, policies):
    reply = await policies["solver"].chat([af.user(f"AGENT {task.payload['index']}")])
    return len(reply.tokens)
"""


async def test_an_agent_joins_from_its_own_file_and_a_script_watches(tmp_path: Path) -> None:
    text = TOY.replace('kind = "toy"\n\n[sources', 'kind = "toy"\nagent = "external"\n\n[sources').partition("[eval")[0]
    file = write_toy(tmp_path, text)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "shout.py").write_text(JOINING)
    up = ["up", str(file), "--listen", f"127.0.0.1:{free_port()}", *sets(*ENDLESS)]
    async with started(tmp_path, *up) as command:
        await command.expect("astraflow node --join")
        connection = connection_to(tmp_path / "runs" / "demo")
        flags = ["--join", connection.url, "--run", "demo", "--token-file", str(connection.token_file)]
        async with started(tmp_path / "mine", "agent", "shout.py", *flags, "--name", "extra") as agent:
            await watch(connection)
            agent.process.terminate()
            assert await agent.end() == 0, agent.output
        command.process.terminate()
        assert await command.end() == ENDED_EARLY, command.output


async def watch(connection: Connection) -> None:
    """What a script sees and wants of a run."""
    async with af.connect(connection.url, run="demo", token_file=connection.token_file) as run:
        assert await first(run.members(), lambda member: member.actor.startswith("rollout-agent-extra"))
        train = await first(run.metrics("train", policy="solver", start="first"), lambda metrics: metrics.step == 2)
        assert train.values["train.loss"] == train.values["train.loss"]
        wanted = await run.submit("game", {"index": 7}, group_size=2)
        mine = await first(run.episodes("game", start="first"), lambda episode: episode.group_id == wanted)
        assert mine.source == "submitted-game"
        with pytest.raises(af.ConfigError, match="there is no knob"):
            await run.set("policies.solver.trainer.steps", 5, within_s=60)
        await run.pause(within_s=60)
        await run.resume(within_s=60)
        batch = await first(run.samples("solver", start="first"), lambda batch: batch.number == 4)
        assert batch.samples
        episode = await first(run.episodes("game", start="first"), lambda episode: episode.reason == "ok")
        (trajectory,) = episode.trajectories
        assert trajectory.reward == trajectory.turns[0].completion_tokens.shape[0]  # as the agent's own code says
        assert await first(run.versions("solver"), lambda head: head.version >= 4)


async def first(found: AsyncGenerator[T, None], fits: Callable[[T], bool]) -> T:
    """The first that fits."""
    async with aclosing(found):
        async for each in found:
            if fits(each):
                return each
    raise AssertionError("it ended")
