"""`astraflow check`."""

import argparse
import sys

from astraflow.cli.arguments import Verbs, add_run_file, add_verb


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "check",
        help="check a run file, offline; print its data algorithms in a sentence each and every default filled in",
        example="astraflow check examples/arithmetic.toml --set run.seed=7",
    )
    add_run_file(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the pipeline as comments and the resolved file; the return value is the exit code. Raises ConfigError."""
    from astraflow.runfile import load, pipeline, resolved

    config = load(args.run_file, args.overrides)
    sys.stdout.write("".join(f"# {line}\n" for line in pipeline(config)) + "\n" + resolved(config))
    return 0
