"""The command line's parser: a verb or flag that doesn't exist is answered with the nearest that does.

It knows no verb. Invariant: a mistake is one sentence on stderr and exit code 2, without a page of usage before it.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from astraflow.named import nearest

_CHOICE = re.compile(r"argument ([^:]*): invalid choice: '(.*?)' \(choose from (.*)\)$", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that knows its verb's flags when one of them is misspelt."""

    def parse_all(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse everything. Exits with 2 for an argument that no verb takes."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            verb = getattr(args, "parser", self)
            flags = [flag for action in verb._actions for flag in action.option_strings if flag.startswith("--")]
            name = unknown[0].partition("=")[0]
            hint = nearest(name, flags) if name.startswith("-") else f"; see `{verb.prog} --help`"
            verb.error(f"unknown argument {unknown[0]!r}{hint}")
        return args

    def error(self, message: str) -> NoReturn:
        """Say it and exit with 2."""
        if match := _CHOICE.match(message):
            what, name, choices = match.groups()
            known = re.findall(r"[\w.-]+", choices)
            message = f"unknown {what} {name!r}{nearest(name, known)}"
        sys.stderr.write(f"{self.prog}: {message}\n")
        sys.exit(2)
