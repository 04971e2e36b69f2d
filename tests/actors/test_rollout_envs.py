"""A rollout takes only tasks of environments that it can run, and says which it can't."""

from pathlib import Path

import msgspec
import pytest

from astraflow.actors.rollout.actor import build_envs
from astraflow.actors.rollout.play import Handles
from astraflow.bus.memory import MemoryServer
from astraflow.config import EnvSection
from astraflow.envs.agents import Agent
from astraflow.errors import ConfigError, EnvError
from tests.actors.contexts import CONFIG, context

MISSING = EnvSection(kind="user_code_that_isnt_here:Env")


async def test_an_environment_whose_code_is_missing_is_named_and_left_out(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, envs={"game": EnvSection(kind="toy"), "own": MISSING})
    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx:
        assert list(build_envs(ctx)) == ["game"]
        assert list(ctx.member().unserved) == ["own"]
        assert "user_code_that_isnt_here" in ctx.member().unserved["own"]


async def test_a_rollout_that_can_run_nothing_ends_with_the_reasons(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, envs={"own": MISSING})
    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx:
        with pytest.raises(ConfigError, match=r"no environment of this run can be built here: .*user_code_that"):
            build_envs(ctx)


async def test_an_agent_for_an_environment_that_the_run_lacks_is_refused(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async def play(task: object, policies: object) -> float:
        return 0.0

    async with context(memory_server, tmp_path, role="rollout") as ctx:
        with pytest.raises(ConfigError, match="no environment 'gaem', which agent play plays; did you mean 'game'"):
            build_envs(ctx, [Agent(function=play, env="gaem")])


def test_a_policy_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(EnvError, match="no policy or role 'sovler' here"):
        Handles()["sovler"]
