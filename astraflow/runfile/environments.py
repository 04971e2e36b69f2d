"""Building the environments of a run file, to check their arguments, and how their tasks are divided.

In a process of its own (`python -m astraflow.runfile.environments`): environments load heavy packages, and some
generate the same questions everywhere only under the hash seed that actors run with.
"""

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from astraflow.config import EvalSection, RunConfig, SourceSection, from_json, to_json
from astraflow.errors import AstraflowError
from astraflow.named import load_named
from astraflow.runfile.checks import trainable
from astraflow.runfile.decode import Where

if TYPE_CHECKING:
    from astraflow.envs.base import Environment


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with one key; an empty path = nothing is."""

    path: tuple[str, ...] = ()
    problem: str = ""


class Sized(Protocol):
    """What is asked of a built environment here."""

    @property
    def size(self) -> int | None: ...


def check_environments(config: RunConfig, where: Where) -> None:
    """Build each environment whose packages are installed; check its arguments and the ranges of task indices.

    Raises: ConfigError.
    """
    result = subprocess.run(
        [sys.executable, "-m", "astraflow.runfile.environments"],
        input=to_json(config),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if result.returncode != 0:
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise where.error(("envs",), f"building the environments crashed: {''.join(last) or result.returncode}")
    finding = msgspec.json.decode(result.stdout.splitlines()[-1], type=Finding)
    if finding.path:
        raise where.error(finding.path, finding.problem)


def find(config: RunConfig) -> Finding:
    """The first thing that is wrong."""
    from astraflow.envs.registry import PACKAGES, build_env, find_agent, missing_packages

    for name, section in config.envs.items():
        if section.kind in PACKAGES and missing_packages(section):
            continue  # an extra that isn't installed here: its arguments can't be checked
        try:
            find_agent(name, section)
            env = build_env(section)
        except AstraflowError as exc:
            return Finding(("envs", name), str(exc))
        try:
            if finding := check_ranges(name, env, config) or (check_first(name, env) if ":" in section.kind else None):
                return finding
        except AstraflowError as exc:  # e.g. a file that `size` reads
            return Finding(("envs", name), str(exc))
        finally:
            asyncio.run(env.close())
    return _find_loss(config)


def _find_loss(config: RunConfig) -> Finding:
    """A loss of the user's own that can't be found; needs torch where that imports it."""
    for name, trainer in trainable(config).items():
        if ":" in trainer.loss.objective:
            try:
                load_named(trainer.loss.objective, what="loss")
            except AstraflowError as exc:
                return Finding(("policies", name, "trainer", "loss", "objective"), str(exc))
    return Finding()


def check_first(name: str, env: "Environment") -> Finding | None:
    """Whether an environment of the user's own makes a task that can be sent, and a prompt of it."""
    from astraflow.envs.base import ChatMessage
    from astraflow.envs.single_turn import SingleTurnEnv, describe

    try:
        payload: Any = env.task(0)
        if not isinstance(payload, dict):
            return Finding(("envs", name), f"task(0) returned {payload!r}, expected a dict")
        msgspec.msgpack.encode(payload)
        messages: Any = env.prompt(payload) if isinstance(env, SingleTurnEnv) else ()
    except Exception as exc:  # noqa: BLE001 - users' code
        return Finding(("envs", name), f"its first task can't be made: {describe(exc)}")
    if isinstance(messages, str) or not all(isinstance(message, ChatMessage) for message in messages):
        return Finding(("envs", name), f"prompt() returned {messages!r}, expected a list of ChatMessage")
    return None


def check_ranges(name: str, env: Sized, config: RunConfig) -> Finding | None:
    """Whether sources and eval sets of this environment leave its tasks or overlap."""
    sources = {key: s for key, s in config.sources.items() if s.env == name}
    evals = {key: e for key, e in config.eval.items() if e.env == name}
    ranges: list[tuple[tuple[str, ...], SourceSection | EvalSection]] = [
        *((("sources", key), source) for key, source in sources.items()),
        *((("eval", key), held_out) for key, held_out in evals.items()),
    ]
    for path, section in ranges:
        if finding := _check_inside(path, section, env.size):
            return finding
    for key, source in sources.items():
        if source.shuffle and not source.size and env.size is None:
            return Finding(("sources", key, "shuffle"), f"environment {name} is endless; set sources.{key}.size too")
        if config.dataflow.shares == "size" and not source.size and env.size is None:
            return Finding(("sources", key, "size"), f"is 0, but environment {name} is endless and shares = 'size'")
        if finding := _check_levels(key, source, getattr(env, "levels", 1)):
            return finding
        last = _last_index(source, env.size, config) - 1
        for eval_key, held_out in evals.items():
            eval_last = held_out.first + held_out.size - 1
            if held_out.first <= last and source.first <= eval_last:
                return Finding(
                    ("eval", eval_key, "first"),
                    f"tasks {held_out.first} to {eval_last} overlap with those of source {key} ({source.first} to"
                    f" {last}), but held-out tasks must not be trained on; move them, or bound sources.{key}.size",
                )
    return None


def _check_levels(name: str, source: SourceSection, levels: int) -> Finding | None:
    """Whether the environment has the levels that the selector climbs."""
    wanted = source.select.args.get("levels", 1) if source.select.kind == "levels" else 1
    if wanted <= levels:
        return None
    return Finding(
        ("sources", name, "select", "args"),
        f"levels is {wanted}, but environment {source.env} has {levels}; see docs/run-file.md on levels",
    )


def _check_inside(path: tuple[str, ...], section: SourceSection | EvalSection, size: int | None) -> Finding | None:
    last = section.first + max(1, section.size) - 1
    if size is None or last < size:
        return None
    return Finding(
        (*path, "first"),
        f"tasks {section.first} to {last} are asked for, but environment {section.env} has only 0 to {size - 1}",
    )


def _last_index(source: SourceSection, env_size: int | None, config: RunConfig) -> int:
    """One past the last index that the source can reach; of an endless source, what the steps need without filters."""
    if source.size:
        return source.first + source.size
    if env_size is not None:
        return env_size
    return source.first + sum(t.steps * t.batch_groups for t in trainable(config).values())


def main() -> None:
    """The config as JSON on stdin, the finding as JSON on the last line of stdout."""
    finding = find(from_json(sys.stdin.buffer.read()))
    sys.stdout.write("\n" + msgspec.json.encode(finding).decode() + "\n")


if __name__ == "__main__":
    main()
