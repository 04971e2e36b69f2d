"""`python -m astraflow`: the `astraflow` command, with this interpreter."""

import sys

from astraflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
