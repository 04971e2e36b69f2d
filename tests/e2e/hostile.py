"""Messages that no actor of ours would send, as raw bytes."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec

from astraflow.messages import (
    ChunkKind,
    Episode,
    Event,
    GenChunk,
    GenRequest,
    Member,
    MemberState,
    Message,
    Metrics,
    Reason,
    Sampling,
    Task,
    Trajectory,
    Turn,
    VersionSpan,
    array_of,
    encode,
)
from astraflow.messages.arrays import Array
from astraflow.messages.metric_names import POLICY_TOKENS_PER_S, POLICY_VERSION, RECORDER_EPISODES

HUGE = 10**9


def envelope(**fields: Any) -> bytes:
    """An envelope as msgpack writes it, with anything in it."""
    given = {"id": "x", "type": "task", "schema": 1, "run": "hostile", "producer": "p", "sent_at": 0.0, "body": {}}
    return bytes(msgpack.packb(given | fields, strict_types=False))


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


def undecodable(kind: str, valid: bytes) -> Iterator[bytes]:
    """Bytes that are no message of type `kind`; `valid` is one."""
    yield from (b"", b"\xc1", b"\x00", b"hello", valid[: len(valid) // 2], valid[:-1], valid + b"\x00")
    yield b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 8  # a map of 4 G entries
    yield b"\xc6\xff\xff\xff\xff" + b"x" * 8  # 4 GB of bytes
    yield b"\xdd\xff\xff\xff\xff\x01"  # a list of 4 G entries
    yield nested(200_000)
    yield envelope(type=kind, body=[])
    yield envelope(type="rm -rf")
    yield envelope(type=kind, schema=99)
    yield envelope(type=kind, id=5)
    yield envelope(type=kind, body=msgpack.ExtType(42, b"boom"))
    yield msgpack.packb(msgpack.ExtType(17, b"x" * 100))
    fields = msgspec.to_builtins(msgspec.msgpack.decode(valid), builtin_types=(bytes,))
    for name, value in fields["body"].items():
        if value is not None and not isinstance(value, dict):
            yield envelope(type=kind, body=fields["body"] | {name: {"not": "this"}})


def of_other_run(message: Message) -> bytes:
    return encode(message, id="other", run="somebody-elses", producer="p")


def task(**fields: Any) -> Task:
    given: dict[str, Any] = {
        "id": "evil",
        "group_id": "g",
        "group_size": 4,
        "member": 0,
        "source": "game",
        "env": "game",
        "payload": {},
        "seed": 1,
    }
    return Task(**(given | fields))


def absurd_tasks() -> Iterator[Task]:
    """Each of these is rejected before it is played."""
    yield task(env="nothing")
    yield task(id="new\nline: header")
    yield task(id="\u202e\u0000")
    yield task(id="0123/game/0/1/0")
    yield task(deadline_s=math.nan)
    yield task(deadline_s=-1.0)


def request(**fields: Any) -> GenRequest:
    given: dict[str, Any] = {
        "id": "evil|solver",
        "attempt": 0,
        "policy": "solver",
        "prompt_tokens": array_of([1, 2], "i4"),
        "sampling": Sampling(max_new_tokens=4),
        "seed": 1,
        "reply_subject": "af.hostile.reply.nobody.x",
    }
    return GenRequest(**(given | fields))


def absurd_requests() -> Iterator[GenRequest]:
    """Each of these is rejected before it takes a slot."""
    yield request(policy="judge")
    yield request(reply_subject="af.hostile.sample.solver")
    yield request(reply_subject="af.hostile.reply.a b\r\nPUB x 1")
    yield request(reply_subject="")
    yield request(prompt_tokens=Array("i4", (HUGE,), b"1234"))
    yield request(prompt_tokens=Array("f4", (1,), b"1234"))
    yield request(prompt_tokens=Array("i4", (-1, -1), b"1234"))
    yield request(prompt_tokens=Array("i4", (0, 2**63 - 1), b""))
    yield request(prompt_tokens=Array("i4", (0,) * 65, b""))


def refused_requests() -> Iterator[GenRequest]:
    """The engine answers these with a refusal."""
    yield request(id="a|solver", prompt_tokens=array_of([HUGE], "i4"))
    yield request(id="b|solver", prompt_tokens=array_of([-5], "i4"))
    yield request(id="c|solver", sampling=Sampling(max_new_tokens=HUGE))
    yield request(id="d|solver", sampling=Sampling(temperature=math.nan))
    yield request(id="e|solver", position=HUGE)
    yield request(id="f|solver", min_version=10**15)  # waits in its slot for a while, in vain


def turn(**fields: Any) -> Turn:
    given: dict[str, Any] = {
        "context_tokens": array_of([1], "i4"),
        "completion_tokens": array_of([2, 3], "i4"),
        "logprobs": array_of([-1, -1], "f4"),
        "versions": (VersionSpan(version=0, start=0, end=2),),
        "finish_reason": "stop",
    }
    return Turn(**(given | fields))


def episode(*turns: Turn, reward: float = 1.0, **fields: Any) -> Episode:
    given: dict[str, Any] = {
        "task_id": "evil",
        "attempt": 0,
        "group_id": "g",
        "group_size": 4,
        "member": 0,
        "source": "game",
        "env": "game",
        "reason": Reason.OK,
        "feeds": ("solver",),
        "trajectories": (Trajectory(policy="solver", turns=turns, reward=reward),),
    }
    return Episode(**(given | fields))


def absurd_episodes(incarnation: str) -> Iterator[Episode]:
    """Well-formed records of tasks that nobody issued, and of one that was, with impossible contents."""
    group = f"{incarnation}/game/0/0"
    mine: dict[str, Any] = {"task_id": f"{group}/0", "group_id": group}
    for issued in ({}, mine):
        yield episode(turn(), reward=math.nan, **issued)
        yield episode(turn(), reward=math.inf, **issued)
        yield episode(turn(), reward=1e300, **issued)
        yield episode(turn(completion_tokens=Array("i4", (HUGE,), b"1234")), **issued)
        yield episode(turn(logprobs=array_of([math.nan, 0], "f4")), **issued)
        yield episode(turn(versions=()), **issued)
        yield episode(turn(completion_tokens=Array("i4", (), b"1234")), **issued, started_at=math.nan)
        yield episode(turn(versions=(VersionSpan(version=-1, start=5, end=-HUGE),)), **issued)
        yield episode(turn(), **(issued | {"group_size": HUGE, "member": HUGE}))
        yield episode(turn(), **(issued | {"attempt": -HUGE}))
        yield episode(turn(), **(issued | {"attempt": HUGE}))
        yield episode(turn(), **(issued | {"feeds": ("nobody",), "source": "nowhere", "env": "nothing"}))
        yield episode(turn(), **(issued | {"eval_set": "none", "eval_round": -HUGE}))
    yield episode(turn(), task_id=f"{incarnation}/game/{'9' * 5000}/0/0")
    yield episode(turn(), task_id=f"{incarnation}/game/-1/0/0", group_id=f"{incarnation}/game/-1/0")


def chunk(**fields: Any) -> GenChunk:
    given: dict[str, Any] = {"request_id": "none", "attempt": 0, "kind": ChunkKind.TOKENS, "replica": "evil"}
    return GenChunk(**(given | fields))


def absurd_chunks() -> Iterator[GenChunk]:
    yield chunk()
    yield chunk(tokens=Array("i4", (HUGE,), b"1"), logprobs=array_of([0], "f4"))
    yield chunk(tokens=array_of([1], "i4"), logprobs=Array("f8", (1,), b"1"), position=-HUGE)


def member(role: str = "recorder") -> Member:
    gauges = dict.fromkeys((RECORDER_EPISODES, POLICY_VERSION, POLICY_TOKENS_PER_S, "x"), math.inf)
    return Member(
        actor=f"{role}-\u0000",
        role=role,
        node="x" * 1000,
        incarnation="",
        pid=-HUGE,
        state=MemberState.READY,
        policy="solver",
        since=math.nan,
        gauges=gauges,
        waits_since=-1e300,
        waits_for="[bold]\x1b[2J",
    )


def metrics() -> Iterator[Metrics]:
    """Whatever an actor may say of itself."""
    for kind, policy in itertools.product(("train", "eval", "weights", "rollout", "dataflow", "?"), ("nobody", "")):
        yield Metrics(kind=kind, at=1.0, values={"at": math.nan, "kind": 1.0}, policy=policy, labels={"set": "?"})
        yield Metrics(kind=kind, at=math.nan, values={"train.reward": math.inf}, policy=policy, step=-HUGE, batch=HUGE)


def events() -> Iterator[Event]:
    """Events that no line of JSON can say, or no terminal should show."""
    yield Event(level="error", name="x", text="[/bold]\x1b[2J", at=math.nan, fields={"deep": {None: 1, True: 2}})
    yield Event(level="?", name="", text="", at=-1e308, fields={"bytes": b"\xff", "time": math.inf})
