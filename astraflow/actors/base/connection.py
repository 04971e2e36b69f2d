"""How a process of this node reaches the bus: address, who it is, whom it trusts; and flags that tell an actor so.

It reads files when asked for options, not before. Invariant: a token never stands in a command line, where everybody on
the machine can read it; it goes to actors through their environment.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.bus import BusOptions
from astraflow.bus.secure import RUN_FILE
from astraflow.errors import ConfigError
from astraflow.messages.roles import Role
from astraflow.paths import user_path, user_path_text

TOKEN_VARIABLE = "ASTRAFLOW_TOKEN"
_ENDINGS = (".nk", ".creds")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Where the server is and how to be let in.

    Attributes:
        token: as given by value; `token_file` otherwise.
        credentials_file: a NATS key (.nk) or .creds; every process of the node uses it.
        credentials_dir: instead, a folder with such a file per role, as `astraflow bus --secure` makes it.
        ca_file: who signed the server's certificate.
    """

    url: str
    region: str
    token_file: Path | None = None
    token: str = ""
    credentials_file: str = ""
    credentials_dir: str = ""
    ca_file: str = ""

    @classmethod
    def of(cls, given: Any, *, url: str, token: str = "") -> "Connection":
        """From whatever says it in fields of these names: flags, the run file's [bus], the owner of a run folder.

        Args: `token` counts only where no file has one.
        """
        return cls(
            url=url,
            region=given.region,
            token_file=user_path(given.token_file) if given.token_file else None,
            token="" if given.token_file else token,
            credentials_file=user_path_text(given.credentials_file),
            credentials_dir=user_path_text(getattr(given, "credentials_dir", "")),  # an actor has its one file
            ca_file=user_path_text(given.ca_file),
        )

    def options(self, role: Role = Role.OBSERVER) -> BusOptions:
        """For a connection of this process; `role` picks from the folder, if there is one. Raises ConfigError."""
        own = self.for_role(role)
        token = own.token
        if not token and own.token_file is not None:
            try:
                token = own.token_file.read_text(encoding="utf-8-sig").strip()
            except OSError as exc:
                raise ConfigError(f"token file {own.token_file} can't be read: {exc.strerror}") from exc
        return BusOptions(url=own.url, token=token, credentials_file=own.credentials_file, ca_file=own.ca_file)

    def to_enter(self, run: str) -> BusOptions:
        """For who creates or changes a run. Raises ConfigError if the folder of credentials is another run's: its admin
        could, but no other key of the folder would be let in."""
        remembered = Path(self.credentials_dir) / RUN_FILE
        if self.credentials_dir and remembered.exists() and (theirs := remembered.read_text().strip()) != run:
            raise ConfigError(
                f"{self.credentials_dir} has the keys of run {theirs!r}, not of {run!r}: make some with "
                f"`astraflow bus --secure DIR --run {run}`, or choose run.name = {theirs!r}"
            )
        return self.options(Role.ADMIN)

    def for_role(self, role: Role) -> "Connection":
        """The same with the credentials that the role uses. Raises ConfigError if there is a folder that lacks them."""
        if not self.credentials_dir:
            return self
        key = role.key
        found = [path for ending in _ENDINGS if (path := Path(self.credentials_dir) / f"{key}{ending}").exists()]
        if not found:
            raise ConfigError(
                f"{self.credentials_dir} has no credentials for {key}: copy {key}.nk there from the server's "
                f"credentials folder, or give --role only what this machine may be"
            )
        return replace(self, credentials_file=str(found[0]), credentials_dir="")

    def flags(self) -> list[str]:
        """Arguments for `python -m astraflow.actors`; `from_flags` understands them."""
        flags = ["--url", self.url, "--region", self.region]
        flags += ["--token-file", str(self.token_file)] if self.token_file else []
        flags += ["--credentials-file", self.credentials_file] if self.credentials_file else []
        flags += ["--ca-file", self.ca_file] if self.ca_file else []
        return flags

    def environment(self) -> dict[str, str]:
        """What an actor needs besides `flags`."""
        return {TOKEN_VARIABLE: self.token} if self.token else {}

    def absolute(self) -> "Connection":
        """The same for a process in another working directory."""
        return replace(
            self,
            token_file=self.token_file.resolve() if self.token_file else None,
            **{
                name: str(Path(value).resolve()) if (value := getattr(self, name)) else ""
                for name in ("credentials_file", "credentials_dir", "ca_file")
            },
        )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What `Connection.flags` writes."""
    parser.add_argument("--url", required=True)
    parser.add_argument("--region", default="local")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--credentials-file", default="")
    parser.add_argument("--ca-file", default="")


def from_flags(args: argparse.Namespace, environment: Mapping[str, str]) -> Connection:
    """The connection of an actor process."""
    return Connection.of(args, url=args.url, token=environment.get(TOKEN_VARIABLE, ""))
