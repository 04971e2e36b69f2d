"""A secured server under attack by somebody who has one role's key: what is tried stores, deletes, forges and stops
nothing that isn't the role's own."""

import asyncio
import hashlib
import itertools
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from astraflow.bus import NatsBus, Topology, wiring
from astraflow.bus.claims import CLAIM, Claim
from astraflow.bus.rights import API, BOUND
from astraflow.bus.trust import inbox_of
from astraflow.errors import UnreadableValueError
from astraflow.messages import Event, Member, MemberState, Metrics, RunRecord, encode
from astraflow.messages.roles import Role
from tests.bus.attacker import attacking
from tests.bus.secured import Secured, secured_server
from tests.support import eventually, make_episode, make_task

RECORD = RunRecord(name="test", incarnation="i", config_json=b"{}", created_at=1.0)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    topology = Topology(run="test", region="local", envs=["math"], policies=["solver"])
    async with secured_server(tmp_path / "bus", topology) as running:
        yield running


def member(actor: str, about: str = "") -> Member:
    return Member(actor=actor, role="rollout", node="n", incarnation="i", pid=1, state=MemberState.READY, about=about)


async def _contents(admin: NatsBus) -> dict[str, tuple[int, int]]:
    """How much is in each stream, and its last sequence."""
    states = {row.stream: await admin.logs.state(row.stream) for row in admin.topology.rows}
    return {stream: (state.messages, state.last_sequence) for stream, state in states.items()}


async def _fill(admin: NatsBus) -> None:
    names = admin.topology
    await admin.kv.put(wiring.RUN.key(), RECORD)
    await admin.kv.put(wiring.MEMBER.key("honest"), member("honest"), ttl_s=600)
    await admin.publish(names.task("math"), make_task(), msg_id="t")
    await admin.publish(names.episode("math"), make_episode("first"), msg_id="e")
    await admin.event("info", "hello", "text")


@pytest.mark.parametrize("role", BOUND)
async def test_a_key_can_make_no_consumer_and_have_nothing_delivered(secured: Secured, role: Role) -> None:
    names = secured.topology
    async with secured.bus(Role.ADMIN) as admin, attacking(secured.options(role)) as attacker:
        await _fill(admin)
        before = await _contents(admin)
        targets = [
            names.manifest("solver"),
            names.sample("solver"),
            names.decision(),
            names.control(),
            names.kv_subject("run"),
            f"{API}.STREAM.DELETE.{names.tasks}",
            f"{API}.STREAM.PURGE.{names.kv}",
        ]
        streams = [row.stream for row in names.rows]
        for stream, target in itertools.product(streams, targets):
            config = {
                "name": "evil",
                "durable_name": "evil",
                "deliver_subject": target,
                "ack_policy": "none",
                "deliver_policy": "all",
            }
            body = {"stream_name": stream, "config": config}
            for request in (
                f"CONSUMER.CREATE.{stream}",
                f"CONSUMER.CREATE.{stream}.evil",
                f"CONSUMER.CREATE.{stream}.evil.>",
                f"CONSUMER.DURABLE.CREATE.{stream}.evil",
            ):
                await attacker.publish(f"$JS.API.{request}", json.dumps(body).encode(), reply=f"{attacker.inbox}.x")
        await attacker.settle()
        assert not attacker.heard
        assert len(attacker.denied) == 4 * len(streams) * len(targets)
        assert await _contents(admin) == before


async def test_what_a_guest_asks_with_a_foreign_reply_subject_stays_with_guests(secured: Secured) -> None:
    names = secured.topology
    async with secured.bus(Role.ADMIN) as admin:
        await _fill(admin)
        await (await admin.link.session()).request(names.event("info"), b"+TERM")  # read with an ack as its reply
        before = await _contents(admin)
        targets = [
            names.manifest("solver"),
            names.sample("solver"),
            names.decision(),
            names.task("math"),
            names.submission(),
            names.kv_subject("run"),
            f"{API}.STREAM.DELETE.{names.episodes}",
            f"{API}.STREAM.PURGE.{names.kv}",
            f"{API}.CONSUMER.CREATE.{names.kv}.x",
            f"$JS.ACK.{names.tasks}.{names.task_consumer('math')}.1.1.1.1.1",
        ]
        for role in BOUND:
            async with attacking(secured.options(role)) as attacker:
                for target in targets:
                    for ask, body in [
                        (f"DIRECT.GET.{names.episodes}.{names.episode('math')}", b""),
                        (f"DIRECT.GET.{names.episodes}", b'{"seq":1,"batch":9,"next_by_subj":">"}'),
                        (f"DIRECT.GET.{names.events}", b'{"seq":2}'),
                        (f"STREAM.MSG.GET.{names.episodes}", b'{"seq":1}'),
                        (f"STREAM.INFO.{names.episodes}", b""),
                        (f"CONSUMER.MSG.NEXT.{names.gen_requests}.{names.gen_consumer('solver')}", b"1"),
                    ]:
                        await attacker.publish(f"$JS.API.{ask}", body, reply=target)
                await attacker.settle()
            after = await _contents(admin)
            changed = {stream for stream in before if after[stream] != before[stream]}
            assert changed <= _own(names, role), role
            before = after
            for stream in before:
                info = await (await admin.link.session()).api(f"STREAM.INFO.{stream}")
                assert info["state"]["consumer_count"] == len(names.row_of_stream[stream].consumers)


def _own(names: Topology, role: Role) -> set[str]:
    """Streams that a role may write to."""
    keys = {names.row_of(names.kv_pattern(f.pattern)).stream for f in wiring.FAMILIES if role in f.writers}
    return {row.stream for row in names.rows if role in row.writers} | keys


async def test_headers_of_a_guest_roll_up_nothing_and_fence_nobody(secured: Secured) -> None:
    names = secured.topology
    async with secured.bus(Role.ADMIN) as admin, attacking(secured.options(Role.ROLLOUT)) as attacker:
        await _fill(admin)
        before = await _contents(admin)
        mine = encode(member("evil"), id="x", run="test")
        subjects = [
            names.kv_subject(wiring.MEMBER.key("evil")),
            names.episode("math"),
            names.event("info"),
            names.metric("x"),
            names.gen("solver"),
            names.blob("x") + ".y",
            names.dead_letter("x"),
        ]
        for subject, rollup in itertools.product(subjects, ("all", "sub", "ALL")):
            await attacker.publish(subject, mine, headers={"Nats-Rollup": rollup}, reply=f"{attacker.inbox}.x")
        await attacker.publish(f"{names.kv_prefix}probe", b"", headers={"Nats-Rollup": "all"})
        await attacker.publish(f"{names.kv_prefix}run", b"", headers={"Nats-Rollup": "sub"})
        await attacker.settle()
        after = await _contents(admin)
        assert all(after[stream][0] >= messages for stream, (messages, _) in before.items())
        assert (await admin.kv.get(wiring.RUN.key())).message == RECORD
        assert set(await admin.kv.entries(wiring.MEMBER.prefix)) == {wiring.MEMBER.key("honest")}


async def test_answers_of_another_key_can_be_neither_heard_nor_given(secured: Secured) -> None:
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.OBSERVER) as observer,
        secured.bus(Role.DATAFLOW) as dataflow,
        attacking(secured.options(Role.ROLLOUT)) as attacker,
    ):
        await _fill(admin)
        for subject in ("_INBOX.>", ">", "*", "_INBOX.*.>", "$JS.>", "$SYS.>", "$JS.ACK.>", "$JS.EVENT.>", "af.>"):
            await attacker.listen(subject)
        assert len(attacker.denied) == 9
        for bus in (observer, dataflow):
            victim = secured.inbox(Role.OBSERVER if bus is observer else Role.DATAFLOW)
            for token in range(50):
                await attacker.publish(f"{victim}.r.{token}", b"forged")
            assert (await bus.kv.get(wiring.RUN.key())).message == RECORD
        assert not attacker.heard


async def test_nodes_with_keys_of_their_own_are_out_of_each_other_s_reach(tmp_path: Path) -> None:
    topology = Topology(run="test", region="local", envs=["math"], policies=["solver"])
    async with secured_server(tmp_path / "bus", topology, nodes=["one", "two"]) as secured:
        one, two = (secured.options(Role.ROLLOUT, node=node) for node in ("one", "two"))
        inboxes = {inbox_of(options, "") for options in (one, two, secured.options(Role.ROLLOUT))}
        assert len(inboxes) == 3
        async with (
            secured.bus(Role.ADMIN) as admin,
            NatsBus.connect(one, topology, producer="one") as bus,
            attacking(two) as attacker,
        ):
            await _fill(admin)
            await attacker.listen(f"{inbox_of(one, '')}.>")
            assert len(attacker.denied) == 1
            await attacker.publish(f"{inbox_of(one, '')}.r.x", b"forged")
            await attacker.settle()
            assert len(attacker.denied) == 2
            assert (await bus.kv.get(wiring.RUN.key())).message == RECORD
            assert not attacker.heard


async def test_texts_of_others_come_out_fit_to_print(secured: Secured) -> None:
    names, evil = secured.topology, "\x1b[2J\r\nfine\x07"
    async with secured.bus(Role.OBSERVER) as observer, attacking(secured.options(Role.ROLLOUT)) as attacker:
        event = Event(level="info", name=evil, text=evil, actor=evil, at=1.0, fields={evil: [evil]})
        metrics = Metrics(kind=evil, policy=evil, at=1.0, values={evil: 1.0})
        await attacker.publish(
            names.kv_subject(wiring.MEMBER.key("evil")), encode(member("evil", about=evil), id="m", run="test")
        )
        await attacker.publish(names.event("info"), encode(event, id="e", run="test"))
        await attacker.publish(names.metric("train"), encode(metrics, id="x", run="test"))
        await attacker.settle()
        entries = await observer.kv.entries(wiring.MEMBER.prefix)
        found = [entry.message for entry in entries.values()]
        for stream in (names.events, names.metrics):
            found += [entry.message async for entry in observer.logs.read(stream, follow=False)]
        assert len(found) == 3
        assert not any(char in repr(message) for message in found for char in ("\\x1b", "\\r", "\\n", "\\x07"))


async def test_an_id_that_was_taken_by_garbage_does_not_lose_the_message(secured: Secured) -> None:
    names = secured.topology
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.ROLLOUT) as rollout,
        secured.bus(Role.DATAFLOW) as dataflow,
        attacking(secured.options(Role.ROLLOUT)) as attacker,
    ):
        other = encode(make_episode("other"), id="another", run="test", producer="evil")
        for msg_id, data in [("a", b"garbage"), ("b", b""), ("c", other)]:
            await attacker.publish(names.episode("math"), data, headers={"Nats-Msg-Id": msg_id})
        await attacker.publish(names.episode("code"), b"elsewhere", headers={"Nats-Msg-Id": "d"})
        await attacker.publish(names.episode("math"), b"\x93", headers={"Nats-Msg-Id": "e", CLAIM: "1"})
        await attacker.settle()
        for msg_id in "abcde":
            await rollout.publish(names.episode("math"), make_episode(msg_id), msg_id=msg_id)
        big = make_episode("big", prompt="x" * (2 << 20))
        await attacker.publish(names.episode("math"), b"garbage", headers={"Nats-Msg-Id": "big"})
        await attacker.settle()
        await rollout.publish(names.episode("math"), big, msg_id="big")
        again = await rollout.publish(names.episode("math"), make_episode("a"), msg_id="a")
        assert again.sequence
        found = [entry.message.task_id async for entry in dataflow.logs.read(names.episodes, follow=False)]
        assert set("abcde") | {"big"} <= set(found)
        assert await admin.dead_letters.read()


HOSTILE_HEADERS = [
    b"NATS/1.0 404",
    b"NATS/1.0 503",
    b"NATS/1.0 204 EOB",
    b"NATS/1.0 100",
    b"NATS/1.0 \xff\xfe \xff",
    b"NATS/1.0\r\nStatus: 503",
    b"NATS/1.0\r\nNats-Sequence: 99999",
    b"NATS/1.0\r\nNats-Last-Sequence: 7\r\nStatus: 204",
    b"NATS/1.0\r\nNats-Num-Pending: -4",
    b"NATS/1.0\r\n\xff\xff: \xff",
    b"NATS/1.0\r\nno colon",
    b"NATS/1.0\r\n: x",
    b"NATS/1.0\r\nAf-Claim: 1",
    b"NATS/1.0\r\nAf-Sequence: x",
    b"NATS/1.0\r\nNats-Subject: af.test.decision",
    b"NATS/1.0\r\nKV-Operation: DEL",
    b"NATS/1.0\r\nNats-Marker-Reason: MaxAge",
    b"NATS/2.0",
    b"\xff",
]


async def test_hostile_headers_subjects_and_bytes_end_no_reader(secured: Secured) -> None:
    names = secured.topology
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.DATAFLOW) as dataflow,
        secured.bus(Role.POLICY) as policy,
        secured.bus(Role.OBSERVER) as observer,
        secured.bus(Role.ROLLOUT) as rollout,
        attacking(secured.options(Role.ROLLOUT)) as attacker,
    ):
        await _fill(admin)
        events, members = observer.logs.read(names.events), observer.kv.watch(wiring.MEMBER.prefix)
        episodes = dataflow.logs.read(names.episodes)
        await anext(events)
        await anext(episodes)
        for block, data in itertools.product(HOSTILE_HEADERS, (b"", b"x")):
            for subject in (
                names.episode("math"),
                names.event("info"),
                names.gen("solver"),
                names.kv_subject(wiring.MEMBER.key("evil")),
                names.dead_letter("x"),
                names.gen_cancel("solver"),
            ):
                await attacker.publish(subject, data, headers=block)
        for prefix in (b"af.test.episode.", b"af.test.event.", b"af.test.member.", b"af.test.gen.", b"af.test.dead."):
            await attacker.publish(prefix + b"\xff\xfe" + (b".any" if b"gen" in prefix else b""), b"x")
        await attacker.settle()
        await rollout.publish(names.episode("math"), make_episode("after"), msg_id="after")
        await rollout.event("info", "after", "text")
        async with asyncio.timeout(30):
            assert (await anext(episodes)).message.task_id == "after"
            while (await anext(events)).message.name != "after":
                pass
            told = [await anext(members) for _ in range(2)]
            assert "member.honest" in {update.key for update in told if update.message is not None}
        async with policy.queues.open(names.gen_requests, names.gen_consumer("solver")) as queue:
            assert await queue.fetch(4, wait=False) == []
        assert len(await admin.dead_letters.read()) > 10
        for bus in (dataflow, policy, observer):
            assert bus.link.reconnects == 0
        for each in (events, members, episodes):
            await each.aclose()


async def test_a_flood_of_members_is_bounded_and_the_honest_come_back(secured: Secured) -> None:
    names = secured.topology
    async with (
        secured.bus(Role.ADMIN) as admin,
        secured.bus(Role.DATAFLOW) as dataflow,
        attacking(secured.options(Role.ROLLOUT)) as attacker,
    ):
        await _fill(admin)
        fat = encode(member("evil", about="x" * 60_000), id="x", run="test")
        for number in range(400):
            await attacker.publish(names.kv_subject(f"member.evil-{number}"), fat)
        await attacker.publish(names.kv_subject(wiring.MEMBER.key("huge")), bytes(900_000))
        await attacker.settle()
        state = await admin.logs.state(names.members)
        assert state.bytes <= names.limits.max_members_bytes
        await dataflow.kv.put(wiring.MEMBER.key("dataflow-n-0"), member("dataflow-n-0"), ttl_s=60)
        assert wiring.MEMBER.key("dataflow-n-0") in await dataflow.kv.entries(wiring.MEMBER.prefix)
        assert wiring.MEMBER.key("huge") not in await dataflow.kv.entries(wiring.MEMBER.prefix)
        assert (await admin.kv.get(wiring.RUN.key())).message == RECORD


async def test_a_part_that_is_named_many_times_costs_its_reader_nothing(secured: Secured) -> None:
    names = secured.topology
    async with secured.bus(Role.DATAFLOW) as dataflow, attacking(secured.options(Role.ROLLOUT)) as attacker:
        part = secrets.token_bytes(400 << 10)
        digest = hashlib.sha256(part).digest()
        subject = names.episode("math")
        await attacker.publish(f"{subject}.part.{digest.hex()}", part)
        claim = Claim(size_bytes=999 * len(part), part_bytes=len(part), digests=(digest,) * 999)
        await attacker.publish(subject, msgspec.msgpack.encode(claim), headers={CLAIM: "1", "Nats-Msg-Id": "claim"})
        await attacker.settle()
        before = _memory_bytes()
        assert [entry async for entry in dataflow.logs.read(names.episodes, follow=False)] == []
        assert _memory_bytes() - before < 64 << 20


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_the_server_s_other_doors_are_closed(secured: Secured) -> None:
    """Everything of the JetStream API that changes something, and the server's own."""
    names = secured.topology
    async with secured.bus(Role.ADMIN) as admin:
        await _fill(admin)
        before = await _contents(admin)
        for role in BOUND:
            async with attacking(secured.options(role)) as attacker:
                for stream in (names.kv, names.members, names.tasks, names.episodes, names.decisions):
                    for request in (
                        f"STREAM.CREATE.{stream}",
                        f"STREAM.UPDATE.{stream}",
                        f"STREAM.DELETE.{stream}",
                        f"STREAM.MSG.DELETE.{stream}",
                        f"STREAM.SNAPSHOT.{stream}",
                        f"STREAM.RESTORE.{stream}",
                        f"STREAM.PEER.REMOVE.{stream}",
                        f"STREAM.LEADER.STEPDOWN.{stream}",
                        f"CONSUMER.PAUSE.{stream}.c",
                        f"CONSUMER.DELETE.{stream}.c",
                        f"CONSUMER.UNPIN.{stream}.c",
                        f"CONSUMER.RESET.{stream}.c",
                        "STREAM.CREATE.NEW",
                        "META.LEADER.STEPDOWN",
                        "SERVER.REMOVE",
                        "ACCOUNT.PURGE.RUN_test",
                    ):
                        await attacker.publish(f"$JS.API.{request}", b"{}", reply=f"{attacker.inbox}.x")
                for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.RUN_test.PURGE", "$SYS.DEBUG.SUBSCRIBERS"):
                    await attacker.publish(subject, b"{}", reply=f"{attacker.inbox}.x")
                for subject in ("$KV.AF_test_local.run", f"{names.root}.news.KV.x", "$JS.API.$KV.AF_test_local.run"):
                    if role is not Role.DATAFLOW:
                        await attacker.publish(subject, b"{}", reply=f"{attacker.inbox}.x")
                await attacker.settle()
                assert not attacker.heard
        assert await _contents(admin) == before


async def test_batches_and_schedules_write_nothing_that_is_not_the_role_s(secured: Secured) -> None:
    names = secured.topology
    async with secured.bus(Role.ADMIN) as admin, attacking(secured.options(Role.ROLLOUT)) as attacker:
        await _fill(admin)
        before = await _contents(admin)
        for headers in (
            {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": names.decision()},
            {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": names.manifest("solver")},
            {"Nats-Incr": "+1"},
            {"Nats-Expected-Stream": names.decisions},
            {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
            {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "9", "Nats-Batch-Commit": "1"},
        ):
            for subject in (names.episode("math"), names.kv_subject(wiring.MEMBER.key("x")), names.decision()):
                await attacker.publish(subject, b"x", headers=headers, reply=f"{attacker.inbox}.x")
        await attacker.settle()
        await asyncio.sleep(0)
        after = await _contents(admin)
        for stream in (names.decisions, names.weights("solver"), names.samples("solver"), names.kv, names.tasks):
            assert after[stream] == before[stream]


async def test_unreadable_bytes_in_any_key_are_a_sentence_and_can_be_written_over(secured: Secured) -> None:
    async with secured.bus(Role.ADMIN) as admin, attacking(secured.options(Role.ADMIN)) as attacker:
        for family in wiring.FAMILIES:
            if family.message is None:
                continue
            key = family.key(*("x" for _ in family.tokens))
            for data in (b"\xc1junk", b"", encode(Event(level="i", name="n", text="", actor="a", at=0), id="x")):
                await attacker.publish(admin.topology.kv_subject(key), data)
                await attacker.settle()
                with pytest.raises(UnreadableValueError, match=rf"KV key {key} can't be read .*up --fresh") as caught:
                    await admin.kv.get(key)
                assert caught.value.revision > 0
        revision = caught.value.revision
        assert revision
        with pytest.raises(UnreadableValueError) as run:
            await admin.kv.get(wiring.RUN.key())
        await admin.kv.put(wiring.RUN.key(), RECORD, expected_revision=run.value.revision)
        assert (await admin.kv.get(wiring.RUN.key())).message == RECORD


async def test_members_that_expire_are_told_though_their_stream_has_no_markers(secured: Secured) -> None:
    async with secured.bus(Role.ROLLOUT) as rollout, secured.bus(Role.OBSERVER) as observer:
        await rollout.kv.put(wiring.MEMBER.key("short"), member("short"), ttl_s=1)
        await rollout.kv.put(wiring.MEMBER.key("long"), member("long"), ttl_s=600)
        gone: list[str] = []

        async def watch() -> None:
            async for update in observer.kv.watch(wiring.MEMBER.prefix):
                if update.key and update.message is None:
                    gone.append(update.key)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await eventually(lambda: gone == ["member.short"])
            watching.cancel()
