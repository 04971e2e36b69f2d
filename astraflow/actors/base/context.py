"""What an actor's code holds: its bus, the run, and what it tells the outside about itself.

It owns no task and does no I/O; the heartbeat thread reads `member()` from it. Fields are single assignments, so a
reader in another thread sees each one whole.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from astraflow import clock
from astraflow.bus import Bus
from astraflow.concurrency import first_of, wait_at_most
from astraflow.config import PolicySection, RunConfig
from astraflow.messages import Member, MemberState, RunRecord

T = TypeVar("T")

BLOCKED_AFTER_S = 2.0  # a publish that waits for longer is worth a sentence


@dataclass(kw_only=True)
class ActorContext:
    """One actor's surroundings.

    Attributes:
        folder: the run folder on this machine.
        policy: the policy it serves or trains; "" for roles that have none.
        threads: cores that its compute may use.
        stopping: set when the actor must end: `stop_reason` is "drain" (signal), "finished" (the run is over) or
            "stopped" (`astraflow stop`).
        came_up: set once it can work, or waits for its turn.
        unserved: environments that it can't run, or roles that a node can't have, and why.
        roles: what a node has or is starting.
    """

    bus: Bus
    config: RunConfig
    record: RunRecord
    folder: Path
    name: str
    role: str
    node: str = "local"
    policy: str = ""
    threads: int = 1
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    stop_reason: str = ""
    came_up: asyncio.Event = field(default_factory=asyncio.Event)
    last_error: str = ""
    problems: tuple[str, ...] = ()  # see Member
    about: str = ""  # see Member
    gauges: dict[str, float] = field(default_factory=dict)
    unserved: dict[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    state: MemberState = MemberState.JOINING
    _state_at: float = field(default_factory=clock.monotonic)  # when it changed last
    _waiting: tuple[str, float] = ("", 0.0)  # for what, and since when (monotonic)

    @property
    def policy_section(self) -> PolicySection:
        """The run file's section of this actor's policy."""
        return self.config.policies[self.policy]

    def stop(self, reason: str) -> None:
        """Ask the actor to end; the first reason stays."""
        if not self.stopping.is_set():
            self.stop_reason = reason
            self.stopping.set()

    def set_state(self, state: MemberState) -> None:
        self.state, self._state_at = state, clock.monotonic()
        if state in (MemberState.STANDBY, MemberState.READY):
            self.came_up.set()

    def waits_for(self, sentence: str) -> None:
        """Say what this actor waits for, for `status`; "" = it is busy."""
        if sentence != self._waiting[0]:
            self._waiting = (sentence, clock.monotonic())

    async def stopped_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the actor to be stopped; whether it was. For periodic work."""
        return await wait_at_most(self.stopping, seconds)

    async def unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The result of `work`; None if the actor is stopped first, and then `work` is cancelled."""
        return await first_of(work, self.stopping.wait())

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def member(self, *, loop_lag_s: float = 0.0, stuck_frame: str = "") -> Member:
        """The presence record as of now."""
        now, wall = clock.monotonic(), clock.wall()
        sentence, waits_since = self._waiting
        state_s, waits_s = now - self._state_at, now - waits_since if sentence else 0.0
        blocked, blocked_s = self.bus.waits.sentence()
        if blocked_s < BLOCKED_AFTER_S:
            blocked, blocked_s = "", 0.0
        return Member(
            actor=self.name,
            role=self.role,
            node=self.node,
            incarnation=self.incarnation,
            pid=os.getpid(),
            state=self.state,
            policy=self.policy,
            since=wall - state_s,
            waits_for=sentence,
            waits_since=wall - waits_s if sentence else 0.0,
            loop_lag_s=loop_lag_s,
            stuck_frame=stuck_frame,
            gauges=dict(self.gauges),
            last_error=self.last_error,
            problems=self.problems,
            unserved=dict(self.unserved),
            roles=self.roles,
            blocked=blocked,
            blocked_since=wall - blocked_s if blocked else 0.0,
            about=self.about,
            state_s=state_s,
            waits_s=waits_s,
            blocked_s=blocked_s,
        )
