"""A live run as Python iterators: `async with af.connect("nats://hub:4222", run="demo") as run`.

Every iterator has a reader of its own on the bus, and nobody waits for it: a slow one reads later what the log still
holds. It keeps no state between connections. Iterators end when they are closed, not when the run ends.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar, get_args

from astraflow.actors.base.connection import Connection
from astraflow.api.orders import RunOrders
from astraflow.bus import NatsBus, topology_of, wiring
from astraflow.config import from_json
from astraflow.dataflow.submissions import PREFIX
from astraflow.errors import ConfigError
from astraflow.messages import (
    EVENT_LEVELS,
    Decision,
    DecisionKind,
    Episode,
    Event,
    Head,
    Member,
    Metrics,
    SampleBatch,
)
from astraflow.messages.metric_names import DATAFLOW, METRIC_KINDS
from astraflow.messages.roles import Role
from astraflow.named import nearest
from astraflow.node.record import fetch_record
from astraflow.paths import user_path, user_path_text
from astraflow.runfile.checks import trainable

M = TypeVar("M")
Start = Literal["first", "new"]


@asynccontextmanager
async def connect(
    url: str,
    *,
    run: str,
    token: str = "",
    token_file: str | Path = "",
    credentials_file: str | Path = "",
    credentials_dir: str | Path = "",
    ca_file: str | Path = "",
    region: str = "local",
) -> AsyncIterator["Run"]:
    """A live run, until the block ends.

    Args:
        url: of the run's server, as `up --listen` prints it.
        token, token_file, credentials_file, credentials_dir, ca_file: as the flags of `astraflow node`.
    Raises: ConfigError if there is no such run, BusError if the server can't be reached or refuses.
    """
    connection = Connection(
        url=url,
        region=region,
        token=token,
        token_file=user_path(token_file) if token_file else None,
        credentials_file=user_path_text(credentials_file),
        credentials_dir=user_path_text(credentials_dir),
        ca_file=user_path_text(ca_file),
    )
    record = await fetch_record(connection, run, Role.USER)
    config = from_json(record.config_json)
    async with NatsBus.connect(
        connection.options(Role.USER), topology_of(config, region=connection.region), producer="user"
    ) as bus:
        yield Run(bus, config, record.incarnation)


class Run(RunOrders):
    """A run that one is connected to. `start`: "new" = from now on, "first" = from the oldest that the log holds.

    With keys per role (`bus --secure`), a user's key (`user.nk`) is enough for all of it.
    """

    @property
    def name(self) -> str:
        return self.config.run.name

    def _check(self, what: str, name: str, known: Iterable[str]) -> None:
        """Raises ConfigError for a name that the run doesn't have: nothing would ever come."""
        if name not in (known := list(known)):
            raise ConfigError(f"run {self.name} has no {what} {name!r}{nearest(name, known)}")

    async def tasks(self, source: str = "", *, start: Start = "new") -> AsyncGenerator[Decision, None]:
        """Groups of tasks as they are issued: source, epoch, index, group size; the payload is the environment's.

        Raises, as all of them: ConfigError for a name that the run doesn't have.
        """
        if source and not source.startswith(PREFIX):
            self._check("source", source, self.config.sources)
        async with aclosing(self._entries(self._bus.topology.decisions, Decision, start)) as decisions:
            async for decision in decisions:
                if decision.kind is DecisionKind.ISSUE and source in ("", decision.source):
                    yield decision

    async def episodes(self, env: str = "", *, start: Start = "new") -> AsyncGenerator[Episode, None]:
        """Terminal records of attempts, failed ones too: trajectories with tokens, rewards, reason."""
        topology = self._bus.topology
        if env:
            self._check("environment", env, self.config.envs)
        subject = topology.episode(env) if env else None
        async with aclosing(self._entries(topology.episodes, Episode, start, subject)) as episodes:
            async for episode in episodes:
                yield episode

    async def samples(self, policy: str, *, start: Start = "new") -> AsyncGenerator[SampleBatch, None]:
        """Numbered batches, as the policy's trainer gets them.

        Dataflow tells metrics of each batch that it has stored. They are the bell here; the batches are then fetched
        one by one, because a reader of their log would need rights with which one could take tasks too (`rights.py`).
        """
        self._check("policy with a trainer", policy, trainable(self.config))
        self._check("start", start, get_args(Start))
        topology = self._bus.topology
        stream, subject = topology.samples(policy), topology.sample(policy)
        heard = (await self._bus.logs.state(topology.metrics)).last_sequence
        position = 1 if start == "first" else (await self._bus.logs.state(stream)).last_sequence + 1
        bells = self._bus.logs.read(topology.metrics, subject=topology.metric(DATAFLOW), start=heard + 1)
        async with aclosing(bells):
            while True:
                while (entry := await self._bus.logs.next(stream, subject, start=position)) is not None:
                    position = entry.sequence + 1
                    if isinstance(entry.message, SampleBatch):
                        yield entry.message
                await anext(bells)

    async def versions(self, policy: str) -> AsyncGenerator[Head, None]:
        """The policy's newest version, now and whenever there is a newer one."""
        self._check("policy", policy, self.config.policies)
        async with aclosing(self._bus.kv.watch(wiring.HEAD.key(policy))) as updates:
            async for update in updates:
                if isinstance(update.message, Head):
                    yield update.message

    async def metrics(self, kind: str = "", *, policy: str = "", start: Start = "new") -> AsyncGenerator[Metrics, None]:
        """Named numbers: kind train, eval, rollout, dataflow or weights."""
        topology = self._bus.topology
        if kind:
            self._check("kind of metrics", kind, METRIC_KINDS)
        if policy:
            self._check("policy", policy, self.config.policies)
        subject = topology.metric(kind) if kind else None
        async with aclosing(self._entries(topology.metrics, Metrics, start, subject)) as metrics:
            async for each in metrics:
                if policy in ("", each.policy):
                    yield each

    async def events(self, level: str = "", *, start: Start = "new") -> AsyncGenerator[Event, None]:
        """What a person may want to know: level info, warning or error."""
        topology = self._bus.topology
        if level:
            self._check("level of events", level, EVENT_LEVELS)
        subject = topology.event(level) if level else None
        async with aclosing(self._entries(topology.events, Event, start, subject)) as events:
            async for event in events:
                yield event

    async def members(self) -> AsyncGenerator[Member, None]:
        """Who is there, then every change of it, several times a second. One that left without a word isn't told."""
        async with aclosing(self._bus.kv.watch(wiring.MEMBER.prefix)) as updates:
            async for update in updates:
                if isinstance(update.message, Member):
                    yield update.message

    async def _entries(
        self, stream: str, kind: type[M], start: Start, subject: str | None = None
    ) -> AsyncGenerator[M, None]:
        self._check("start", start, get_args(Start))
        async with aclosing(self._bus.logs.read(stream, subject=subject, start=start)) as entries:
            async for entry in entries:
                if isinstance(entry.message, kind):
                    yield entry.message
