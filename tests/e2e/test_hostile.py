"""A run under fire: malformed and absurd messages into every stream, and it goes on to its end."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import nats
import pytest

from astraflow.bus import NatsBus, topology_of, wiring
from astraflow.config import from_json
from astraflow.messages import Message, RunRecord, encode
from astraflow.runfile import load
from tests.cli.toyrun import TOY, finished, sets, started
from tests.e2e import hostile
from tests.e2e.liverun import connection_to
from tests.support import eventually

RUN = TOY.replace('name = "demo"', 'name = "hostile"')
STEPS = 40


async def under_fire(folder: Path) -> Counter[str]:
    """Publish everything; dead letters by the kind of stream they came from, once all are there."""
    options = connection_to(folder / "runs/hostile").options()
    topology = topology_of(load(folder / "run.toml", []))
    raw = await nats.connect(options.url, token=options.token)
    async with NatsBus.connect(options, topology, producer="hostile") as bus:
        record = (await bus.kv.get(wiring.RUN.key())).message
        assert isinstance(record, RunRecord)
        assert from_json(record.config_json).run.name == "hostile"

        async def send(subject: str, items: Iterable[bytes | Message]) -> int:
            count = 0
            for item in items:
                data = item if isinstance(item, bytes) else encode(item, id=f"h/{count}", run="hostile", producer="h")
                await raw.publish(subject, data)
                count += 1
            return count

        expected: Counter[str] = Counter()
        for kind, token, subject, valid, absurd in (
            ("task", "task", topology.task("game"), hostile.task(), hostile.absurd_tasks()),
            ("gen_request", "gen", topology.gen("solver"), hostile.request(), hostile.absurd_requests()),
            ("episode", "episode", topology.episode("game"), hostile.episode(hostile.turn()), ()),
        ):
            message = encode(valid, id="v", run="hostile", producer="p")
            sent = await send(subject, [*hostile.undecodable(kind, message), *absurd, hostile.of_other_run(valid)])
            sent += await send(subject, [hostile.member()])  # of another type
            expected[token] = sent
        expected["sample"] = await send(topology.sample("solver"), [b"\xc1", hostile.member()])
        expected["decision"] = await send(topology.decision(), [b"\xc1", hostile.member()])
        await send(topology.gen("solver"), hostile.refused_requests())
        await send(topology.episode("game"), hostile.absurd_episodes(record.incarnation))
        message = encode(hostile.chunk(), id="v", run="hostile", producer="p")
        replies = f"{topology.reply('local')}.x"
        await send(replies, [*hostile.undecodable("gen_chunk", message), *hostile.absurd_chunks()])
        await send(topology.gen_cancel("solver"), [*hostile.undecodable("gen_cancel", message), hostile.member()])
        for role in ("policy", "rollout", "dataflow", "trainer", "recorder", "node", "?"):
            await send(topology.kv_subject(f"member.evil-{len(role)}"), [b"\xc1", hostile.member(role)])
        await send(
            topology.kv_subject(wiring.MEMBER.key("record")), [msgspec.structs.replace(record, stop_requested="evil")]
        )
        await send(topology.kv_subject(wiring.DRAIN.key("evil")), [b"\xc1", hostile.member()])
        await send(topology.kv_subject("nothing"), [b"\xc1", hostile.task()])
        await send(topology.event("error"), [b"\xc1", hostile.task(), *hostile.events()])
        await send(topology.metric("train"), [b"\xc1", hostile.task(), *hostile.metrics()])
        await raw.flush()
        await raw.close()

        async def all_buried() -> Counter[str] | None:
            found = Counter(letter.subject.split(".")[2] for letter in await bus.dead_letters.read() if letter.reason)
            return found if all(found[token] >= count for token, count in expected.items()) else None

        try:
            return Counter(await eventually(all_buried))
        except AssertionError:
            letters = Counter(letter.subject.split(".")[2] for letter in await bus.dead_letters.read())
            raise AssertionError(f"expected {expected}, there are {letters}") from None


@pytest.mark.slow
async def test_a_run_under_fire_goes_on_to_its_end_and_no_actor_stops(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    overrides = [f"policies.solver.trainer.steps={STEPS}", "policies.solver.trainer.toy_step_s=0.4", "node.grace_s=3"]
    async with started(tmp_path, "up", "run.toml", *sets(*overrides)) as command:
        await command.expect("solver step 2/")
        try:
            async with asyncio.timeout(100):
                found = await under_fire(tmp_path)
        except TimeoutError:
            raise AssertionError(f"the bus is gone: {await command.end()}\n{command.output}") from None
        seen, status = await finished(tmp_path, "status")
        assert seen == 0, status
        code = await command.end()
    assert code == 0, command.output
    assert "live view ended" not in command.output, command.output
    assert "starting it again" not in command.output, command.output
    assert "ended with exit code" not in command.output, command.output
    assert found["task"] > 20
    summary = json.loads((tmp_path / "runs/hostile/summary.json").read_text())
    assert summary["policies"]["solver"]["steps"] == STEPS
