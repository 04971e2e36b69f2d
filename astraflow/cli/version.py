"""`astraflow version`."""

import argparse
import platform
import sys

import astraflow
from astraflow.cli.arguments import Verbs, add_verb


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    add_verb(verbs, "version", help="print the version", example="astraflow version").set_defaults(run=run)


def sentence() -> str:
    """The version of this package and of the interpreter."""
    return f"astraflow {astraflow.__version__}, Python {platform.python_version()}"


def run(args: argparse.Namespace) -> int:
    """Print it; the return value is the exit code."""
    sys.stdout.write(f"{sentence()}\n")
    return 0
