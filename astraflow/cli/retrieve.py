"""`astraflow retrieve`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb
from astraflow.errors import ConfigError
from astraflow.extras import install_hint

if TYPE_CHECKING:
    from astraflow.envs.search.index import Index


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "retrieve",
        help="serve a search index over HTTP, for environments of kind search",
        example="astraflow retrieve --corpus wiki-18.jsonl.gz --index wiki-index --listen 0.0.0.0:8000",
    )
    parser.add_argument("--corpus", metavar="FILE", nargs="+", default=[], help="passages: JSON lines, CSV, parquet, …")
    parser.add_argument("--people", type=int, default=0, help="or those of the made-up world of this size")
    parser.add_argument("--seed", type=int, default=0, help="of that world (default: 0)")
    parser.add_argument("--index", type=Path, help="folder of the index; one of the same corpus is opened, not built")
    parser.add_argument("--topk", type=int, default=3, help="passages per query, unless a request says (default: 3)")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8000", help="default: 127.0.0.1:8000")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes; the return value is the exit code. Raises ConfigError."""
    from astraflow.config.address import host_and_port
    from astraflow.envs.presets import source
    from astraflow.envs.question_files import find_sources
    from astraflow.envs.search.corpus import read_corpus
    from astraflow.envs.search.index import Index, corpus_name
    from astraflow.envs.search.world import World

    if bool(args.corpus) == bool(args.people):
        raise ConfigError("give --corpus FILE, or --people for a made-up world")
    try:
        host, port = host_and_port(args.listen)
    except ValueError as exc:
        raise ConfigError(f"--listen: {exc}") from exc
    if args.people:
        passages, name = iter(World(people=args.people, seed=args.seed).passages), f"world {args.people} {args.seed}"
    else:
        passages, name = read_corpus(args.corpus), corpus_name(find_sources(source(path=args.corpus)))
    asyncio.run(_serve(Index(passages, folder=args.index, corpus=name), host, port, args.topk))
    return 0


async def _serve(index: "Index", host: str, port: int, topk: int) -> None:
    try:
        from astraflow.envs.search.server import RetrievalServer
    except ModuleNotFoundError as exc:
        raise ConfigError(f"serving an index needs {exc.name}; run: {install_hint('search')}") from exc
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with RetrievalServer(index, topk=topk).listen(host, port) as url:
        sys.stdout.write(f'{len(index)} passages; in a run file: args = {{ retriever = "{url}" }}\n')
        sys.stdout.flush()
        await ended.wait()
