"""`astraflow eval`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.errors import ConfigError

if TYPE_CHECKING:
    from astraflow.config import RunConfig
    from astraflow.messages import Metrics

POLICY, ENV, SET = "policy", "env", "eval"  # names in the run that the flags stand for


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "eval",
        help="evaluate models without a run: by a run file's [eval.*], or by --model and --env",
        example="astraflow eval run.toml --model runs/demo/policies/solver/model\n"
        "  astraflow eval --model tiny-reverse --env tiny --arg task=reverse --size 100 --repeats 4 --max-new-tokens 8",
    )
    parser.add_argument("run_file", metavar="RUN_FILE", nargs="?", help="play its evaluations with its policies")
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="change a key of it"
    )
    parser.add_argument("--only", metavar="SET", action="append", default=[], help="one evaluation of the run file")
    parser.add_argument(
        "--model",
        metavar="[POLICY=]MODEL",
        action="append",
        default=[],
        help="a folder, a built-in's name, or org/name on the hub",
    )
    alone = parser.add_argument_group("without a run file")
    alone.add_argument("--env", metavar="KIND", help="reasoning-gym, math, tiny, or module:Class of your own")
    alone.add_argument("--arg", metavar="KEY=VALUE", action="append", default=[], help="of the environment")
    alone.add_argument("--size", type=int, help="tasks (default: 64)")
    alone.add_argument("--first", type=int, help="index of the first task (default: 1000000, where held-out ones are)")
    alone.add_argument("--repeats", type=int, help="answers per task, for avg@k and pass@k (default: 1)")
    alone.add_argument("--temperature", type=float, help="0 is greedy (default: 1)")
    alone.add_argument("--top-p", type=float, help="1 is off, which is the default")
    alone.add_argument("--max-new-tokens", type=int, help="tokens per completion, at most (default: 256)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per set and policy, in a list")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; 1 if no answer counts. Raises ConfigError, EngineError, BusError."""
    config = _of_file(args) if args.run_file else _of_flags(args)

    from rich.console import Console

    from astraflow.node.evaluate import evaluate

    console = Console(stderr=True)
    models = ", ".join(sorted({policy.model for policy in config.policies.values()}))
    with console.status(f"evaluating {models} on {', '.join(config.eval)}"):
        scores, failures = asyncio.run(evaluate(config))
    rows = [row_of(each, config) for each in scores]
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        sys.stdout.write(table(rows))
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        console.print(f"failed: {failures[0]}{more}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    return 0 if all(row["answers"] for row in rows) else 1


def _of_file(args: argparse.Namespace) -> "RunConfig":
    from astraflow.node.evaluate import evaluation_of
    from astraflow.runfile import load

    flags = ("env", "size", "first", "repeats", "temperature", "top_p", "max_new_tokens")
    if given := [name for name in flags if getattr(args, name) is not None] + ["arg"] * bool(args.arg):
        raise ConfigError(f"--{given[0].replace('_', '-')} is for an evaluation without a run file; use --set instead")
    config = load(args.run_file, args.overrides)
    models = {}
    for text in args.model:
        policy, _, model = text.rpartition("=")
        if not policy and len(config.policies) > 1:
            raise ConfigError(f"--model {text}: whose? write POLICY=MODEL with one of {sorted(config.policies)}")
        models[policy or next(iter(config.policies))] = model
    if unknown := set(models) - set(config.policies):
        raise ConfigError(f"--model {min(unknown)}=…: the run file has the policies {sorted(config.policies)}")
    return evaluation_of(config, models, args.only)


def _of_flags(args: argparse.Namespace) -> "RunConfig":
    from astraflow.node.evaluate import evaluation_of
    from astraflow.runfile.load import load_text
    from astraflow.runfile.toml import dumps

    if not args.env or len(args.model) != 1:
        raise ConfigError("name a run file, or one --model and an --env; see astraflow eval --help")
    if args.only:
        raise ConfigError("--only is for the evaluations of a run file")
    keys = ("size", "first", "repeats", "temperature")
    section = {key: value for key in keys if (value := getattr(args, key)) is not None}
    policy: dict[str, Any] = {"model": args.model[0], "sampling": {}}
    for key in ("top_p", "max_new_tokens"):
        if (value := getattr(args, key)) is not None:
            policy["sampling"][key] = value
    tree = {
        "run": {"name": "eval"},
        "policies": {POLICY: policy},
        "envs": {ENV: {"kind": args.env}},
        "eval": {SET: {"env": ENV, **section}},
    }
    overrides = [f"envs.{ENV}.args.{text}" for text in args.arg] + args.overrides
    return evaluation_of(load_text(dumps(tree), file="what the flags say", overrides=overrides), {})


def row_of(score: "Metrics", config: "RunConfig") -> dict[str, Any]:
    """One line of the result, as in --json. None: the environment has no notion of it, or no answer counts."""
    from astraflow.messages import metric_names as names
    from astraflow.view.history import eval_point

    values, name, point = score.values, score.labels[names.LABEL_SET], eval_point(score)
    return {
        "set": name,
        "policy": score.policy,
        "model": config.policies[score.policy].model,
        "tasks": config.eval[name].size,
        "repeats": config.eval[name].repeats,
        "answers": point.size,
        "failed": int(values[names.EVAL_FAILED]),
        "correct": point.correct,
        "correct_se": point.correct_se,
        "pass_at": point.pass_at,
        "reward": point.reward,
        "reward_se": point.reward_se,
        "seconds": values.get(names.EVAL_SECONDS),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The same for people: what is averaged over k answers per task is called avg@k."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    ladder = sorted({int(k) for row in rows for k in row["pass_at"]})
    shown = Table()
    for column in ("set", "policy", "tasks", "answers", "failed", "correct", *(f"pass@{k}" for k in ladder), "reward"):
        shown.add_column(column, justify="left" if column in ("set", "policy") else "right", no_wrap=True)
    for row in rows:
        passes = [f"{row['pass_at'][str(k)]:.3f}" if str(k) in row["pass_at"] else "–" for k in ladder]
        shown.add_row(
            row["set"],
            row["policy"],
            str(row["tasks"]),
            str(row["answers"]),
            str(row["failed"]),
            _with_error(row["correct"], row["correct_se"], f"avg@{row['repeats']} "),
            *passes,
            _with_error(row["reward"], row["reward_se"]),
        )
    text = StringIO()
    Console(file=text, width=160).print(shown)
    return text.getvalue()


def _with_error(value: float | None, error: float | None, what: str = "") -> str:
    if value is None:
        return "–"
    return f"{what}{value:.3f}" if error is None else f"{what}{value:.3f} ± {error:.3f}"
