"""`astraflow check`."""

import argparse
import sys

from astraflow.cli.arguments import Verbs, add_run_file, add_verb
from astraflow.errors import ConfigError

_MISTAKES = 1  # found what it was asked to look for; 2 would be a wrong use of the command


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "check",
        help="check a run file, offline; tell every mistake in it, or print its data algorithms in a sentence each and "
        "every default filled in",
        example="astraflow check examples/arithmetic.toml --set run.seed=7",
    )
    add_run_file(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print pipeline and warnings as comments and the resolved file, or every mistake; returns the exit code."""
    from astraflow.runfile import downloads, load, pipeline, question_sets, resolved, tokenizer_notes, unseen_answers

    try:
        config = load(args.run_file, args.overrides)
    except ConfigError as exc:
        sys.stderr.write(f"astraflow: {exc}\n")
        return _MISTAKES
    lines = (
        *pipeline(config),
        *question_sets(config),
        *downloads(config),
        *tokenizer_notes(config),
        *unseen_answers(config),
    )
    sys.stdout.write("".join(f"# {line}\n" for line in lines) + "\n" + resolved(config))
    return 0
