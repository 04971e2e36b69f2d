"""build_env: every mistake that a run file can hold is a ConfigError that helps; a user's class is one file."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from astraflow.config import EnvSection
from astraflow.envs import build_env
from astraflow.envs.math_env import MathEnv
from astraflow.envs.toy_env import ToyEnv
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from tests.envs.scripted import ScriptedPolicy, task

EXAMPLES = Path(__file__).parents[2] / "examples"


class RaisingEnv(ToyEnv):
    def __init__(self, *, depth: int = 1) -> None:
        raise RuntimeError("no database")


class NoEnv:
    def __init__(self, **anything) -> None:
        self.anything = anything


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (EnvSection(kind="toy", args={"turns": 2}), ToyEnv),
        (EnvSection(kind="math", args={"path": "questions.jsonl"}), MathEnv),
    ],
)
def test_built_in_kinds(section, kind):
    assert isinstance(build_env(section), kind)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (EnvSection(kind="reasoning_gym"), "did you mean 'reasoning-gym'"),
        (EnvSection(kind="toy", args={"turn": 2}), "no argument 'turn'; did you mean 'turns'"),
        (EnvSection(kind="math"), "needs args.path"),
        (EnvSection(kind="toy", args={"turns": "many"}), "can't be built"),
        (EnvSection(kind="no_such_module:Env"), "there is no module"),
        (EnvSection(kind="json:JSONDecoders"), "did you mean 'JSONDecoder'"),
        (EnvSection(kind="json:dumps"), "has no class 'dumps'"),
        (EnvSection(kind="tests.envs.test_registry:RaisingEnv"), "no database"),
        (EnvSection(kind="tests.envs.test_registry:NoEnv", args={"x": 1}), "has no size, task, run, close"),
        (EnvSection(kind="astraflow.envs:SingleTurnEnv"), "can't be built"),
    ],
)
def test_mistakes_are_config_errors(section, message):
    with pytest.raises(ConfigError, match=message):
        build_env(section)


@pytest.mark.parametrize(
    ("module", "section"),
    [
        ("reasoning_gym.factory", EnvSection(kind="reasoning-gym", args={"dataset": "chain_sum"})),
        ("math_verify", EnvSection(kind="math", args={"path": "x"})),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command(monkeypatch, module, section):
    monkeypatch.setitem(sys.modules, module, None)  # what the import system itself does for "isn't there"
    with pytest.raises(ConfigError, match=re.escape(install_hint("envs"))) as caught:
        build_env(section)
    assert "\n" not in str(caught.value)


async def test_the_example_environment_is_found_in_the_working_directory_and_works(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    env = build_env(EnvSection(kind="my_env:SpellEnv"))
    assert env.size == 6
    outcome = await env.run(task(env.task(0)), {"solver": ScriptedPolicy(" rotca\n")})
    assert outcome.rewards == {"solver": 1.0}
    outcome = await env.run(task(env.task(0)), {"solver": ScriptedPolicy("actor")})
    assert outcome.rewards == {"solver": 0.0}
    source = (EXAMPLES / "my_env.py").read_text().split("\n\n\n", 1)[1]
    assert len(source.splitlines()) < 20


def test_importing_environments_imports_nothing_heavy():
    import subprocess

    code = (
        "import sys, astraflow.envs, astraflow.models\n"
        "heavy = {'torch', 'transformers', 'reasoning_gym', 'math_verify', 'pyarrow', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert importlib.util.find_spec("astraflow.envs.verifier_worker")
