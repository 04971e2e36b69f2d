"""`astraflow show`."""

import argparse
import shutil
import sys
from pathlib import Path

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.errors import ConfigError
from astraflow.paths import user_path

_FILE = "episodes.jsonl"


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "show",
        help="read a run's episodes: every message, what was earned, why it ended; while it runs and afterwards",
        example="astraflow show runs/demo --eval held-out --worst 10 --html worst.html",
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", type=user_path, help=f"the run's folder, or an {_FILE}")
    parser.add_argument("--episode", type=_count, default=0, metavar="N", help="the one with this number")
    parser.add_argument(
        "--task", default="", metavar="ID", help="of this task: its id, or a part of it between slashes"
    )
    parser.add_argument("--policy", default="", metavar="NAME", help="in which this policy or role speaks")
    parser.add_argument("--env", default="", metavar="NAME", help="of this environment")
    parser.add_argument("--source", default="", metavar="NAME", help="of this source")
    parser.add_argument("--eval", dest="eval_set", default="", metavar="NAME", help="of this evaluation")
    parser.add_argument("--reason", default="", metavar="REASON", help="that ended so, e.g. ok, truncated, grader")
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--worst", type=_count, default=0, metavar="N", help="the N that earned least")
    how_many.add_argument("--best", type=_count, default=0, metavar="N", help="the N that earned most")
    how_many.add_argument("--last", type=_count, default=5, metavar="N", help="the newest N (default: 5)")
    parser.add_argument("--html", type=user_path, metavar="FILE", help="write one HTML file instead of printing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write them; the return value is the exit code. Raises ConfigError."""
    from astraflow.view.jsonl_lines import numbered_episodes
    from astraflow.view.transcript_html import transcript_html
    from astraflow.view.transcript_text import transcript_text
    from astraflow.view.transcripts import Choice, chosen

    path = _episodes_file(args.folder)
    choice = Choice(**{name: getattr(args, name) for name in Choice.__struct_fields__})
    episodes = chosen(numbered_episodes(path), choice)
    if args.html is None:
        width = min(120, shutil.get_terminal_size((100, 24)).columns)
        sys.stdout.writelines(f"{line}\n" for line in transcript_text(episodes, width=width))
        return 0
    try:
        with args.html.open("w", encoding="utf-8") as file:
            file.writelines(transcript_html(path.resolve().parent.name, episodes))
    except OSError as exc:
        raise ConfigError(f"--html {args.html} can't be written: {exc.strerror}") from exc
    sys.stdout.write(f"{len(episodes)} episodes are in {args.html}\n")
    return 0


def _episodes_file(given: Path) -> Path:
    path = given if given.is_file() else given / _FILE
    if path.is_file():
        return path
    known = sorted(str(file.parent) for file in Path("runs").glob(f"*/{_FILE}"))
    there_is = f"; there is {', '.join(known)}" if known else ""
    raise ConfigError(f"{given} has no {_FILE}, which a run's recorder writes{there_is}")


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return count
