"""A secured server: what each role can do, what the server refuses, and that no trick gets around it."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, Topology, wiring
from astraflow.bus.certificates import own_names
from astraflow.bus.rights import API, BOUND
from astraflow.bus.secure import prepare
from astraflow.errors import BusError, ConfigError, DeniedError
from astraflow.messages import (
    Decision,
    DecisionKind,
    GenRequest,
    Head,
    Manifest,
    Member,
    MemberState,
    Progress,
    RunRecord,
    SampleBatch,
    Sampling,
    SnapshotPointer,
    VersionKind,
    array_of,
)
from astraflow.messages.roles import Role
from tests.bus.secured import Secured, secured_server
from tests.support import eventually, make_episode, make_task

AT_ONCE_S = 2.0


@pytest.fixture
async def secured(tmp_path: Path, topology: Topology) -> AsyncIterator[Secured]:
    async with secured_server(tmp_path / "bus", topology) as running:
        yield running


def member(actor: str, role: str = "rollout") -> Member:
    return Member(actor=actor, role=role, node="n", incarnation="i", pid=1, state=MemberState.READY)


def request(reply: str, size: int = 3) -> GenRequest:
    return GenRequest(
        id="r",
        attempt=0,
        policy="solver",
        prompt_tokens=array_of([1] * size, "i4"),
        sampling=Sampling(),
        seed=0,
        reply_subject=reply,
    )


def manifest() -> Manifest:
    return Manifest(
        policy="solver", version=9, step=9, batch=9, epoch=9, kind=VersionKind.FULL, tensors=(), parts=(), size_bytes=0
    )


def head(version: int = 9) -> Head:
    return Head(policy="solver", version=version, step=9, epoch=9, manifest_sequence=1, full_manifest_sequence=1)


async def test_a_task_goes_all_the_way_with_each_role_s_own_rights(secured: Secured) -> None:
    names = secured.topology
    async with (
        secured.bus(Role.DATAFLOW) as dataflow,
        secured.bus(Role.ROLLOUT) as rollout,
        secured.bus(Role.POLICY) as policy,
        secured.bus(Role.TRAINER) as trainer,
        secured.bus(Role.OBSERVER) as observer,
    ):
        for bus in (dataflow, rollout, policy, trainer, observer):
            await bus.ensure()  # looks, creates nothing
            await bus.kv.put(wiring.MEMBER.key(bus.producer), member(bus.producer), ttl_s=5)
            await bus.event("info", "hello", "here")
        large = {"text": "x" * (2 << 20)}
        await dataflow.publish(names.task("math"), make_task(payload=large), msg_id="t")
        parts = await trainer.parts.put(
            names.weights("solver"), names.weight_part("solver", 1), b"w" * 99, msg_prefix="w"
        )
        stored = await trainer.publish(names.manifest("solver"), manifest(), msg_id="m")
        await trainer.kv.put(wiring.HEAD.key("solver"), head())

        assert await policy.parts.get(names.weights("solver"), names.weight_part("solver", 1), parts) == b"w" * 99
        assert (await rollout.logs.entry(names.weights("solver"), stored.sequence)).message == manifest()
        assert (await rollout.kv.entries(wiring.HEAD.prefix))[wiring.HEAD.key("solver")].message == head()

        reply = f"{names.reply('n')}.abc"
        async with (
            rollout.queues.open(names.tasks, names.task_consumer("math")) as tasks,
            policy.queues.open(names.gen_requests, names.gen_consumer("solver")) as requests,
            rollout.core.subscribe(reply) as chunks,
            policy.core.subscribe(names.gen_cancel("solver")) as cancels,
        ):
            (task,) = await tasks.fetch(1)
            assert task.message.payload == large
            await rollout.publish(names.gen("solver"), request(reply, size=300_000), msg_id="g", ttl_s=60)
            (asked,) = await requests.fetch(1)
            await policy.core.publish(asked.message.reply_subject, head())
            assert (await anext(chunks)).message == head()
            await rollout.core.publish(names.gen_cancel("solver"), head())
            assert (await anext(cancels)).message == head()
            await asked.ack()
            await rollout.publish(names.episode("math"), make_episode(prompt="p" * (2 << 20)), msg_id="e")
            await task.ack()
            await eventually(lambda: _depths_are_zero(observer))
        episodes = [entry async for entry in dataflow.logs.read(names.episodes, follow=False)]
        assert [len(entry.message.prompt) for entry in episodes] == [2 << 20]
        batch = SampleBatch(policy="solver", number=1, group_ids=(), samples=(), train_step=0)
        await dataflow.publish(names.sample("solver"), batch, msg_id="b", expected_last_sequence=0)
        batches = [entry async for entry in trainer.logs.read(names.samples("solver"), follow=False)]
        assert [entry.message.number for entry in batches] == [1]
        assert await dataflow.logs.purge(names.episodes, below_sequence=episodes[0].sequence) == 0
        assert len(await observer.kv.entries(wiring.MEMBER.prefix)) == 5
        events = [entry async for entry in observer.logs.read(names.events, follow=False)]
        assert len(events) == 5


async def _depths_are_zero(bus: Bus) -> bool:
    return not any((await bus.queues.depths()).values())


@pytest.mark.parametrize("role", [role for role in BOUND if role.is_guest])
async def test_what_a_guest_may_not_write_is_refused_at_once(secured: Secured, role: Role) -> None:
    names = secured.topology
    decision = Decision(kind=DecisionKind.ISSUE, source="s", epoch=0, index=0, group_id="g", group_size=1)
    batch = SampleBatch(policy="solver", number=1, group_ids=(), samples=(), train_step=0)
    record = RunRecord(name="test", incarnation="i", config_json=b"{}", created_at=0)
    pointer = SnapshotPointer(size_bytes=0, parts=(), epoch=1, saved_at=0)
    progress = Progress(policy="solver", consumed=1, step=1, version=1, epoch=1)
    async with secured.bus(role) as bus:
        tries = [
            bus.publish(names.manifest("solver"), manifest(), msg_id="m"),
            bus.parts.put(names.weights("solver"), names.weight_part("solver", 1), b"evil", msg_prefix="w"),
            bus.publish(names.sample("solver"), batch, msg_id="b"),
            bus.publish(names.decision(), decision, msg_id="d"),
            bus.publish(names.task("math"), make_task(), msg_id="t"),
            bus.publish(names.task("math"), make_task(payload={"text": "x" * (2 << 20)}), msg_id="t2"),
            bus.kv.put(wiring.RUN.key(), record),
            bus.kv.put(wiring.HEAD.key("solver"), head()),
            bus.kv.put("snapshot.dataflow", pointer, expected_revision=0),
            bus.kv.put(wiring.PROGRESS.key("solver"), progress),
            bus.kv.delete(wiring.RUN.key()),
            bus.logs.purge(names.episodes, below_sequence=5),
        ]
        for attempt in tries:
            async with asyncio.timeout(AT_ONCE_S):
                with pytest.raises(DeniedError, match="credentials don't allow publish"):
                    await attempt
    async with secured.bus(Role.ADMIN) as admin:
        for stream in (names.weights("solver"), names.samples("solver"), names.decisions, names.tasks, names.kv):
            assert (await admin.logs.state(stream)).messages == 0


async def test_a_pull_or_read_without_the_right_fails_at_once(secured: Secured) -> None:
    names = secured.topology
    async with secured.bus(Role.POLICY) as policy, asyncio.timeout(2 * AT_ONCE_S):
        async with policy.queues.open(names.tasks, names.task_consumer("math")) as tasks:
            with pytest.raises(DeniedError, match=r"msg\.next"):
                await tasks.fetch(1)
        for stream in (names.episodes, names.kv, names.tasks):
            with pytest.raises(DeniedError, match=r"consumer\.create"):
                await (await policy.link.session()).api(f"CONSUMER.CREATE.{stream}.mine", {"stream_name": stream})
        with pytest.raises(DeniedError, match="subscription"):
            async with policy.core.subscribe(f"{names.reply('n')}.>") as feed:
                await anext(feed)


async def test_a_guest_s_answers_from_the_server_stay_on_its_side(secured: Secured) -> None:
    """nats-server checks no reply subjects: without the accounts' border each of these stores or deletes something."""
    names = secured.topology
    targets = [
        names.sample("solver"),
        names.manifest("solver"),
        names.decision(),
        names.task("math"),
        names.kv_subject(wiring.HEAD.key("solver")),
        names.kv_subject("run"),
        f"{API}.STREAM.DELETE.{names.episodes}",
        f"{API}.STREAM.PURGE.{names.episodes}",
    ]
    async with secured.bus(Role.ROLLOUT) as rollout, secured.bus(Role.ADMIN) as admin:
        await rollout.publish(names.episode("math"), make_episode(), msg_id="e")
        await admin.publish(names.task("code"), make_task(env="code"), msg_id="t")
        revision = await rollout.kv.put(wiring.MEMBER.key("evil"), member("evil"))
        session = await rollout.link.session()
        for target in targets:
            await session.send(f"{API}.DIRECT.GET.{names.episodes}.{names.episode('math')}", reply=target)
            await session.send(f"{API}.STREAM.INFO.{names.episodes}", reply=target)
            await session.send(
                f"{API}.CONSUMER.MSG.NEXT.{names.tasks}.{names.task_consumer('code')}", b"1", reply=target
            )
            await session.send(names.episode("math"), b"x", reply=target)
        await session.flush(5)
        async with asyncio.timeout(AT_ONCE_S):  # the server has them all, and stores them after that
            while (await admin.logs.state(names.episodes)).messages < 1 + len(targets):
                pass
        for stream in (names.samples("solver"), names.weights("solver"), names.decisions):
            assert (await admin.logs.state(stream)).messages == 0
        assert (await admin.logs.state(names.tasks)).messages == 1
        assert (await admin.logs.state(names.episodes)).messages == 1 + len(targets)
        assert (await admin.logs.state(names.kv)).last_sequence == 0
        assert (await admin.logs.state(names.members)).last_sequence == revision


async def test_a_stream_that_nobody_has_made_is_named_to_a_role_that_may_not_make_it(
    tmp_path: Path, topology: Topology
) -> None:
    async with secured_server(tmp_path / "bus", topology, "other") as secured:
        other = Topology(run="other", region="local", envs=["math"], policies=["solver"])
        async with NatsBus.connect(secured.options(Role.ROLLOUT, run="other"), other, producer="r") as bus:
            with pytest.raises(BusError, match=r"stream AF_other_local_TASKS isn't there.*astraflow up"):
                await bus.ensure()


async def test_runs_on_one_server_are_out_of_each_other_s_reach(tmp_path: Path, topology: Topology) -> None:
    async with (
        secured_server(tmp_path / "bus", topology, "other") as secured,
        NatsBus.connect(secured.options(Role.ADMIN, run="other"), topology, producer="thief") as thief,
    ):
        with pytest.raises(BusError, match=r"no stream|not found"):
            await thief.logs.state(topology.episodes)


async def test_preparing_again_keeps_keys_and_certificates_and_adds_runs(tmp_path: Path) -> None:
    folder = tmp_path / "bus"
    first = prepare(folder, runs=["a"], region="local", names=own_names("127.0.0.1"))
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "accounts.conf"}

    second = prepare(folder, runs=["b"], region="local", names=["localhost"])

    assert {path: path.read_bytes() for path in kept} == kept
    assert set(first.credentials) == {"a"}
    assert set(second.credentials) == {"a", "b"}
    accounts = (folder / "accounts.conf").read_text()
    assert accounts.count("nkey:") == 2 * len(Role.with_a_key())
    for path in [folder / "ca.key", folder / "server.key", *folder.rglob("*.nk")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().strip() not in accounts
    with pytest.raises(ConfigError, match="region"):
        prepare(folder, runs=["a"], region="elsewhere", names=[])


async def test_a_new_name_gets_a_new_server_certificate_from_the_same_authority(tmp_path: Path) -> None:
    prepare(tmp_path, runs=["a"], region="local", names=["localhost"])
    authority, server = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    prepare(tmp_path, runs=["a"], region="local", names=["hub.example"])
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != server


async def test_distrust_is_one_clear_sentence_at_once(
    secured: Secured, nats_server: EmbeddedServer, tmp_path: Path, topology: Topology
) -> None:
    url, good = secured.server.url, secured.options(Role.ROLLOUT)
    stranger = prepare(tmp_path / "stranger", runs=["test"], region="local", names=["localhost"])
    key = str(stranger.credentials["test"] / "rollout.nk")
    junk = tmp_path / "junk"
    junk.write_text("not a key")
    plain = nats_server.url
    cases = [
        (BusOptions(url=plain, token="wrong"), "refuses the credentials of me .the token.*check the token"),
        (BusOptions(url=plain), "no token and no credentials"),
        (BusOptions(url=url, ca_file=good.ca_file, credentials_file=key), "refuses the credentials of me .*rollout.nk"),
        (BusOptions(url=url, ca_file=good.ca_file, token="t"), "refuses the credentials of me .the token"),
        (BusOptions(url=url, credentials_file=good.credentials_file), "isn't trusted.*give its CA file.*--ca-file"),
        (BusOptions(url=url, ca_file=str(stranger.ca_file)), "isn't trusted.*is it the right CA file"),
        (BusOptions(url=plain, token=nats_server.token, ca_file=good.ca_file), "doesn't speak TLS"),
        (BusOptions(url=plain.replace("nats", "tls"), token=nats_server.token), "doesn't speak TLS"),
        (BusOptions(url=url, ca_file=str(tmp_path / "none")), "CA file .*none can't be read: No such file"),
        (BusOptions(url=url, ca_file=str(junk)), "junk holds no PEM certificate"),
        (BusOptions(url=url, credentials_file=str(junk)), "neither a NATS key"),
        (BusOptions(url=url, credentials_file=str(tmp_path / "none")), "credentials file .*none can't be read"),
    ]
    for options, sentence in cases:
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(BusError, match=sentence):
                async with NatsBus.connect(options, topology, producer="me"):
                    pass


async def test_a_secured_connection_comes_back_after_a_restart_of_the_server(secured: Secured) -> None:
    async with secured.bus(Role.ROLLOUT) as rollout:
        await rollout.ensure()
        os.kill(secured.server.pid, 9)
        await secured.server.wait()
        again = EmbeddedServer(secured.folder.path, port=secured.server.port, security=secured.folder.settings)
        await again.start()
        try:
            async with secured.bus(Role.ADMIN) as admin:
                await admin.ensure()  # GEN is in memory
            ack = await rollout.publish(secured.topology.episode("math"), make_episode(), msg_id="e")
            assert ack.sequence == 1
            assert rollout.link.reconnects >= 1
        finally:
            await again.stop()
