"""`astraflow check`."""

import argparse
import sys

from astraflow.cli.arguments import Verbs, add_run_file, add_verb


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "check",
        help="check a run file, offline, and print it with every default filled in",
        example="astraflow check examples/arithmetic.toml --set run.seed=7",
    )
    add_run_file(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the resolved file; the return value is the exit code. Raises ConfigError."""
    from astraflow.runfile import load, resolved

    sys.stdout.write(resolved(load(args.run_file, args.overrides)))
    return 0
