"""Building the environments of a run file, to check their arguments, and how their tasks are divided.

In a process of its own (`python -m astraflow.runfile.environments`): environments load heavy packages, and some
generate the same questions everywhere only under the hash seed that actors run with.
"""

import asyncio
import contextlib
import inspect
import os
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from astraflow.config import EnvSection, EvalSection, RunConfig, SourceSection, from_json, to_json
from astraflow.errors import AstraflowError, ConfigError, NotHereError
from astraflow.models.hub import never_fetching
from astraflow.named import USERS_ERRORS, load_function
from astraflow.runfile.checks import trainable
from astraflow.runfile.decode import Where
from astraflow.runfile.tokenizer_checks import find_tokenizers
from astraflow.runfile.unknown import known_part

if TYPE_CHECKING:
    from astraflow.envs.base import Environment


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with one key."""

    path: tuple[str, ...]
    problem: str


class _Sized(Protocol):
    """What is asked of a built environment here."""

    @property
    def size(self) -> int | None: ...


def check_environments(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    """Build each environment whose packages are installed; check its arguments and the ranges of task indices."""
    known = known_part(config)
    if known is None:
        return
    result = subprocess.run(
        [sys.executable, "-m", "astraflow.runfile.environments"],
        input=to_json(known),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0", **never_fetching()},
        check=False,
    )
    if result.returncode != 0:
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        yield where.error(("envs",), f"building the environments crashed: {''.join(last) or result.returncode}")
        return
    for finding in msgspec.json.decode(result.stdout.splitlines()[-1], type=list[Finding]):
        yield where.error(finding.path, finding.problem)


def find(config: RunConfig) -> Iterator[Finding]:
    """Everything that is wrong."""
    from astraflow.envs.registry import PACKAGES, missing_packages

    for name, section in config.envs.items():
        if set(PACKAGES.get(section.kind, ())) & set(missing_packages(section)):
            continue  # an extra that isn't installed here: its arguments can't be checked
        try:
            yield from _find_in(name, section, config)
        except NotHereError:
            continue  # downloaded at the first start: how many tasks there are isn't known yet
        except AstraflowError as exc:
            yield Finding(("envs", name), str(exc))
    yield from _find_losses(config)
    yield from (Finding(path, problem) for path, problem in find_tokenizers(config))


def _find_in(name: str, section: EnvSection, config: RunConfig) -> Iterator[Finding]:
    """Of one environment. Raises AstraflowError if it can't be built, or used, e.g. for a file that `size` reads."""
    from astraflow.envs.registry import build_env, find_agent

    find_agent(name, section)
    env = build_env(section)
    try:
        yield from _check_ranges(name, env, config)
        if ":" in section.kind:
            yield from _check_first(name, env)
    finally:
        _close(env)


def _close(env: "Environment") -> None:
    """What it raises is told where it matters, in the run; here the process ends anyway."""
    with contextlib.suppress(*USERS_ERRORS):
        asyncio.run(env.close())


def _find_losses(config: RunConfig) -> Iterator[Finding]:
    """Losses of the user's own that can't be found or called; needs torch where those import it."""
    for name, trainer in trainable(config).items():
        if ":" in trainer.loss.objective:
            try:
                load_function(trainer.loss.objective, what="loss", args=trainer.loss.args)
            except AstraflowError as exc:
                yield Finding(("policies", name, "trainer", "loss", "objective"), str(exc))


def _check_first(name: str, env: "Environment") -> Iterator[Finding]:
    """Whether an environment of the user's own makes a task that can be sent, and a prompt of it."""
    from astraflow.envs.base import ChatMessage
    from astraflow.envs.single_turn import SingleTurnEnv
    from astraflow.raised import describe

    try:
        payload: Any = env.task(0)
        if not isinstance(payload, dict):
            yield Finding(("envs", name), f"task(0) returned {payload!r}, expected a dict")
            return
        msgspec.msgpack.encode(payload)
        messages: Any = env.prompt(payload) if isinstance(env, SingleTurnEnv) else ()
        if inspect.isawaitable(messages):
            messages = asyncio.run(_awaited(messages))
    except USERS_ERRORS as exc:
        yield Finding(("envs", name), f"its first task can't be made: {describe(exc)}")
        return
    if isinstance(messages, str) or not all(isinstance(message, ChatMessage) for message in messages):
        yield Finding(("envs", name), f"prompt() returned {messages!r}, expected a list of ChatMessage")


async def _awaited(messages: Awaitable[Any]) -> Any:
    return await messages


def _check_ranges(name: str, env: _Sized, config: RunConfig) -> Iterator[Finding]:
    """Whether sources and eval sets of this environment leave its tasks or overlap."""
    sources = {key: s for key, s in config.sources.items() if s.env == name}
    evals = {key: e for key, e in config.eval.items() if e.env == name}
    ranges: list[tuple[tuple[str, ...], SourceSection | EvalSection]] = [
        *((("sources", key), source) for key, source in sources.items()),
        *((("eval", key), held_out) for key, held_out in evals.items()),
    ]
    for path, section in ranges:
        yield from _check_inside(path, section, env.size)
    for key, source in sources.items():
        if source.shuffle and not source.size and env.size is None:
            yield Finding(("sources", key, "shuffle"), f"environment {name} is endless; set sources.{key}.size too")
        if config.dataflow.shares == "size" and not source.size and env.size is None:
            yield Finding(("sources", key, "size"), f"is 0, but environment {name} is endless and shares = 'size'")
        yield from _check_levels(key, source, getattr(env, "levels", 1))
        last = _last_index(source, env.size, config) - 1
        for eval_key, held_out in evals.items():
            eval_last = held_out.first + held_out.size - 1
            if held_out.first <= last and source.first <= eval_last:
                yield Finding(
                    ("eval", eval_key, "first"),
                    f"tasks {held_out.first} to {eval_last} overlap with those of source {key} ({source.first} to"
                    f" {last}), but held-out tasks must not be trained on; move them, or bound sources.{key}.size",
                )


def _check_levels(name: str, source: SourceSection, levels: int) -> Iterator[Finding]:
    """Whether the environment has the levels that the selector climbs."""
    wanted = source.select.args.get("levels", 1) if source.select.kind == "levels" else 1
    if wanted > levels:
        yield Finding(
            ("sources", name, "select", "args"),
            f"levels is {wanted}, but environment {source.env} has {levels}; see docs/run-file.md on levels",
        )


def _check_inside(path: tuple[str, ...], section: SourceSection | EvalSection, size: int | None) -> Iterator[Finding]:
    last = section.first + max(1, section.size) - 1
    if size is not None and last >= size:
        yield Finding(
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
    """The config as JSON on stdin, what is found as JSON on the last line of stdout."""
    found = list(find(from_json(sys.stdin.buffer.read())))
    sys.stdout.write("\n" + msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
