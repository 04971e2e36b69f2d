"""The gateway of a rollout process: which environments are played over HTTP, where it listens, and who finds it.

What it serves is in `astraflow.gateway`. Invariant: the file with its key is readable by its owner only, and is gone
when the process has ended in order.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from astraflow.actors.base.context import ActorContext
from astraflow.bus.private import write_private
from astraflow.config import EnvSection, GatewaySection
from astraflow.envs.base import Environment
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.gateway.client import Address
from astraflow.gateway.environment import SessionEnv
from astraflow.gateway.launch import Command
from astraflow.gateway.sessions import Sessions
from astraflow.paths import user_path, user_path_text


class RolloutGateway:
    """The sessions of one process, and the commands that wait for its address."""

    def __init__(self, section: GatewaySection) -> None:
        self.sessions = Sessions()
        self._section = section
        self._commands: list[Command] = []
        self._wanted = False

    def env(self, name: str, section: EnvSection, env: Environment) -> Environment:
        """The environment as it is played over HTTP; itself, if it isn't."""
        if not section.by_http:
            return env
        self._wanted = True
        if not section.command:
            self.sessions.served.add(name)
            return SessionEnv(env, self.sessions)
        command = Command(section.command)
        self._commands.append(command)
        return SessionEnv(env, self.sessions, command)

    def demanded(self, env: str) -> Callable[[], Awaitable[int]] | None:
        """How many clients wait for its tasks; None = its tasks wait for no client."""
        return partial(self.sessions.demanded, env) if env in self.sessions.served else None

    @asynccontextmanager
    async def open(self, ctx: ActorContext) -> AsyncIterator[None]:
        """Listen while inside, if anything is played so. Raises ConfigError."""
        if not self._wanted:
            yield
            return
        try:
            from astraflow.gateway.server import Gateway, Listening
        except ImportError as exc:
            raise ConfigError(f"environments played over HTTP need aiohttp: {install_hint('gateway')}") from exc
        key = self._key()
        listening = Listening(
            address=self._section.listen,
            certificate=user_path_text(self._section.tls_certificate),
            key_file=user_path_text(self._section.tls_key),
        )
        async with Gateway(self.sessions, key=key).listen(listening) as url:
            for command in self._commands:
                command.url = url
            file = ctx.folder / "gateway" / f"{ctx.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, msgspec.json.encode(Address(url, key)).decode())
            ctx.about = f"sessions at {url}"
            try:
                yield
            finally:
                file.unlink(missing_ok=True)

    def _key(self) -> str:
        """The key that takes sessions. Raises ConfigError for a file that has none."""
        if not self._section.key_file:
            return f"rk-{secrets.token_urlsafe(24)}"
        path = user_path(self._section.key_file)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"gateway.key_file {path} can't be read: {exc}") from exc
        if len(key) < 16:
            raise ConfigError(f"gateway.key_file {path} has a key of {len(key)} characters, expected at least 16")
        return key
