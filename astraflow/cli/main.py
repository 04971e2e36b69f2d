"""The `astraflow` command: verbs, their flags, and errors as one sentence on stderr.

Exit codes, as documented in the README: 0 = well (`up`: the run has finished), 1 = failed (server, crash, code of
the user's that a process of the run called; for `check`: mistakes are found), 2 = a mistake in the run file or the
flags, and nothing was started, 5 = ended before its end by a person or a notice (stop,
drain, Ctrl-C, preemption), 130 = interrupted while nothing was drained.
Imports of a verb happen when it runs, so that help is there at once.
"""

import asyncio
import sys
from collections.abc import Sequence

from astraflow.cli import (
    agent,
    bus,
    check,
    drain,
    evaluate,
    init,
    node,
    prometheus,
    retrieve,
    show,
    status,
    stop,
    submit,
    top,
    up,
    version,
    weights,
)
from astraflow.cli.logged import say_warnings
from astraflow.cli.output import guard_output
from astraflow.cli.parser import Parser
from astraflow.concurrency import innermost
from astraflow.errors import AstraflowError, ConfigError

_EXIT_FAILED, EXIT_USER, _EXIT_INTERRUPTED = 1, 2, 130


_VIEWS = ("up", "node", "top")  # what they print is a view of something that goes on without it


def parser() -> Parser:
    """All verbs and flags."""
    whole = Parser(
        prog="astraflow",
        description="Trains LLM agents by reinforcement learning, as actors that meet on NATS.",
        epilog="example: astraflow up examples/tiny.toml",
    )
    whole.add_argument("--version", action="version", version=version.sentence(), help="print the version")
    verbs = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in (
        init,
        up,
        check,
        evaluate,
        bus,
        submit,
        node,
        agent,
        retrieve,
        status,
        top,
        show,
        prometheus,
        drain,
        stop,
        weights,
        version,
    ):
        verb.add(verbs)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the return value is the exit code."""
    sys.path.insert(0, "")  # a user's own `module:Class` is found where the command is run, as with `python -m`
    known = parser()
    if not (sys.argv[1:] if argv is None else argv):
        known.print_help(sys.stderr)
        return EXIT_USER
    args = known.parse_all(argv)
    printed, verb = sys.stdout, args.parser.prog.split()[-1]
    if verb != "agent":  # which is an actor, and has an actor's log
        say_warnings()
    output = guard_output(is_view=verb in _VIEWS)
    try:
        code: int = args.run(args)
        output.flush()
    except AstraflowError as exc:
        return _complain(exc)
    except ExceptionGroup as group:
        error = innermost(group)
        if not isinstance(error, AstraflowError):
            raise
        return _complain(error)
    except (KeyboardInterrupt, asyncio.CancelledError):  # noqa: ASYNC103 - the loop has ended
        sys.stderr.write("astraflow: interrupted\n")
        return _EXIT_INTERRUPTED  # noqa: ASYNC104
    except BrokenPipeError:  # `astraflow status | head`
        return _EXIT_FAILED
    finally:
        sys.stdout = printed
    return code


def _complain(error: AstraflowError) -> int:
    sys.stderr.write(f"astraflow: {error}\n")
    return EXIT_USER if isinstance(error, ConfigError) else _EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
