"""`astraflow init`: a run file and an environment that run at once, to change from there."""

import argparse
import shutil
import sys
import sysconfig
from pathlib import Path

import astraflow
from astraflow.cli.arguments import Verbs, add_verb
from astraflow.errors import ConfigError

RUN_FILE, _ENV_FILE = "run.toml", "my_env.py"

_RUN = """\
# A tiny model learns the environment in my_env.py, on a CPU, in about two minutes:
#
#     astraflow check run.toml     every mistake at once, or every key with its default
#     astraflow up run.toml        Ctrl-C drains, the same command goes on
#
# Next: put your own questions into my_env.py, and model = "Qwen/Qwen3-1.7B" or a folder here.

[run]
name = "first"
seed = 1

[policies.solver]
model = "tiny-reverse" # made on this machine at the first start

[policies.solver.engine]
slots = 256
context_length = 16
dtype = "fp32"

[policies.solver.sampling]
max_new_tokens = 8

[policies.solver.trainer]
steps = 60
batch_groups = 32
learning_rate = 3e-4
max_staleness = 1
dtype = "fp32"

[envs.mine]
kind = "my_env:ReverseEnv"

[sources.mine]
env = "mine"
group_size = 8

[eval.held-out]
env = "mine"
size = 128
every_steps = 30
temperature = 0
"""

_ENV = '''\
"""An environment: what the tasks are, what the policy is asked, and what an answer is worth."""

import random

from astraflow.envs import ChatMessage, Grade, SingleTurnEnv


class ReverseEnv(SingleTurnEnv):
    def task(self, index):
        """The task with this number; equal numbers, equal tasks. Evaluations take theirs from far above."""
        return {"digits": f"{random.Random(index).randrange(100_000):05d}"}

    def prompt(self, payload):
        return [ChatMessage("user", payload["digits"] + "=")]

    def expected(self, payload):
        return payload["digits"][::-1]

    def grade(self, payload, reply):
        right = float(reply.ended and reply.text == self.expected(payload))
        return Grade(reward=right, correct=right)
'''


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs, "init", help="write a run file and an environment that run at once", example="astraflow init first"
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to (default: here)")
    parser.add_argument("--examples", action="store_true", help="the examples instead, into FOLDER/examples")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files; the return value is the exit code. Raises ConfigError for what is there already."""
    folder = Path(args.folder).expanduser()
    if args.examples:
        target = folder / "examples"
        _refuse_existing(target)
        shutil.copytree(_examples_folder(), target, ignore=shutil.ignore_patterns("__pycache__"))
        sys.stdout.write(f"wrote {target}; {target / 'README.md'} tells what is there\n")
        return 0
    for name in (RUN_FILE, _ENV_FILE):
        _refuse_existing(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_FILE).write_text(_RUN, encoding="utf-8")
    (folder / _ENV_FILE).write_text(_ENV, encoding="utf-8")
    there = "" if folder == Path() else f"cd {args.folder} && "
    sys.stdout.write(f"wrote {folder / RUN_FILE} and {folder / _ENV_FILE}; now: {there}astraflow up {RUN_FILE}\n")
    return 0


def _refuse_existing(path: Path) -> None:
    """Raises ConfigError if there is something: it may be somebody's work."""
    if path.exists():
        raise ConfigError(f"{path} is there already; move it away, or name another folder")


def _examples_folder() -> Path:
    """Of this installation: beside the package in a checkout, in the shared data of a wheel. Raises ConfigError."""
    beside = Path(astraflow.__file__).parents[1] / "examples"
    shared = Path(sysconfig.get_path("data")) / "share/astraflow/examples"
    for folder in (beside, shared):
        if (folder / "tiny.toml").is_file():
            return folder
    raise ConfigError(f"this installation has no examples: neither {beside} nor {shared} is there")
