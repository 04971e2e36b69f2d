"""The `astraflow` command: verbs, their flags, and errors as one sentence on stderr.

Exit codes: 0 = well, 1 = failed (server, crash; for `check`: mistakes are found), 2 = a mistake in the run file or the
flags, 130 = interrupted.
Imports of a verb happen when it runs, so that help is there at once.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from astraflow.cli import agent, bus, check, drain, evaluate, node, status, stop, submit, top, up, version, weights
from astraflow.concurrency import innermost
from astraflow.errors import AstraflowError, ConfigError

EXIT_FAILED, EXIT_USER, EXIT_INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """All verbs and flags."""
    whole = argparse.ArgumentParser(
        prog="astraflow",
        description="Trains LLM agents by reinforcement learning, as actors that meet on NATS.",
        epilog="example: astraflow up examples/tiny.toml",
    )
    verbs = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in (up, check, evaluate, bus, submit, node, agent, status, top, drain, stop, weights, version):
        verb.add(verbs)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the return value is the exit code."""
    sys.path.insert(0, "")  # a user's own `module:Class` is found where the command is run, as with `python -m`
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except AstraflowError as exc:
        return _complain(exc)
    except ExceptionGroup as group:
        error = innermost(group)
        if not isinstance(error, AstraflowError):
            raise
        return _complain(error)
    except (KeyboardInterrupt, asyncio.CancelledError):  # noqa: ASYNC103 - the loop has ended
        sys.stderr.write("astraflow: interrupted\n")
        return EXIT_INTERRUPTED  # noqa: ASYNC104
    except BrokenPipeError:  # `astraflow status | head`
        sys.stderr.close()
        return EXIT_FAILED
    return code


def _complain(error: AstraflowError) -> int:
    sys.stderr.write(f"astraflow: {error}\n")
    return EXIT_USER if isinstance(error, ConfigError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
