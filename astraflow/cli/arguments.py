"""Flags that several verbs share."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from astraflow.errors import ConfigError
from astraflow.paths import user_path, user_path_text

if TYPE_CHECKING:
    from astraflow.actors.base.connection import Connection

CONNECTION_FLAGS = (
    ("--token-file", "token_file", "file with the server's token; the token itself: ASTRAFLOW_TOKEN"),
    ("--credentials-file", "credentials_file", "NATS key (.nk) or .creds file"),
    ("--credentials-dir", "credentials_dir", "folder with a key for each role, from `astraflow bus --secure`"),
    ("--ca-file", "ca_file", "who signed the server's certificate; nothing is sent without TLS then"),
)

Verbs = Any  # argparse's private _SubParsersAction


def add_verb(verbs: Verbs, name: str, *, help: str, example: str) -> argparse.ArgumentParser:
    """A verb with a description and an example in its --help."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_run_file(parser: argparse.ArgumentParser) -> None:
    """RUN_FILE and --set."""
    parser.add_argument("run_file", metavar="RUN_FILE", help="the run's TOML file (keys: docs/run-file.md)")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a key for this start, e.g. run.seed=1; may be repeated",
    )


def variable(key: str) -> str:
    """The environment variable that stands for a flag."""
    return f"ASTRAFLOW_{key.upper()}"


def add_connection(parser: argparse.ArgumentParser, *, region: bool = True) -> None:
    """How to reach a server that already runs. `region` False: something else says where that is."""
    given = parser.add_argument_group("connection", "flags, or the environment variables that are named with them")
    for flag, key, text in CONNECTION_FLAGS:
        given.add_argument(flag, default=os.environ.get(variable(key), ""), help=f"{text} [{variable(key)}]")
    if region:
        given.add_argument("--region", default="local", help="the region of that server (default: local)")


def connection_of(args: argparse.Namespace, url: str) -> "Connection":
    """The connection that the flags describe. Raises ConfigError for an address that isn't one."""
    from astraflow.actors.base.connection import TOKEN_VARIABLE, Connection

    if not url.startswith(("nats://", "tls://", "ws://", "wss://")):
        raise ConfigError(f"server address {url!r} is not like nats://HOST:PORT")
    return Connection(
        url=url,
        region=args.region,
        token_file=user_path(args.token_file) if args.token_file else None,
        token="" if args.token_file else os.environ.get(TOKEN_VARIABLE, ""),
        credentials_file=user_path_text(args.credentials_file),
        credentials_dir=user_path_text(args.credentials_dir),
        ca_file=user_path_text(args.ca_file),
    )


def listen_address(text: str, flag: str = "--listen") -> tuple[str, int]:
    """HOST:PORT. Raises ConfigError."""
    from astraflow.config import host_and_port

    try:
        host, port = host_and_port(text)
    except ValueError:
        port = 0
    if not port:
        raise ConfigError(f"{flag} {text}: expected HOST:PORT, e.g. 0.0.0.0:4222")
    return host, port
