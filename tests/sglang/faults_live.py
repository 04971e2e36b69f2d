"""What goes wrong with real servers, and what a replica's engine does about it. Run by `make test-sglang`."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from astraflow.config import EngineSection, SglangSection
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.engine import SglangEngine
from astraflow.errors import EngineError, WeightsError
from astraflow.ports import free_port
from tests.engines.engine_case import read, request
from tests.engines.engine_models import tiny_model
from tests.sglang.live import CPU_ARGS, Pool, PooledEngine, servers
from tests.support import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
MODEL = tiny_model("llama")
OTHER = tiny_model("llama", seed=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    folder: Path = tmp_path_factory.mktemp("model")
    async with servers(1, folder, MODEL.files, MODEL.tensors) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def engine(pool: Pool, request: pytest.FixtureRequest) -> AsyncIterator[PooledEngine]:
    """Attached. Indirect parameters are keys of [engine.sglang]."""
    built = PooledEngine(pool, MODEL.files, MODEL.tensors, slots=16, server=getattr(request, "param", {}))
    try:
        await built.start()
        yield built
    finally:
        await built.stop()


async def test_logprobs_are_the_models_own_at_a_temperature_before_the_filters(engine: PooledEngine) -> None:
    for number, settings in enumerate(({}, {"temperature": 0.6}, {"temperature": 1.7, "top_k": 5, "top_p": 0.8})):
        item = request(str(number), count=32, **settings)
        found = await read(engine.generate(item))
        wanted = MODEL.logprobs(item.prompt_tokens.tolist(), found.tokens, settings.get("temperature", 1.0))
        assert found.logprobs == pytest.approx(wanted, abs=1e-4)


async def test_a_request_that_somebody_else_aborts_goes_on_where_it_stopped(engine: PooledEngine) -> None:
    item = request("long", count=150, temperature=0.0)
    stream = engine.generate(item)
    first = await anext(stream)
    await engine.link.client.post("/abort_request", {"abort_all": True}, within_s=30)
    rest = await read(stream, len(first.tokens))
    assert [*first.tokens, *rest.tokens] == MODEL.greedy(item.prompt_tokens.tolist(), 150)
    assert engine.load().extra["policy.continued"] >= 1


async def test_cancelling_one_request_leaves_those_with_a_similar_id_alone(engine: PooledEngine) -> None:
    streams = {id: engine.generate(request(id, count=100)) for id in ("q1", "q10", "q11")}
    for stream in streams.values():
        await anext(stream)
    await engine.cancel("q1")
    for id in ("q10", "q11"):
        assert [chunk async for chunk in streams[id]][-1].finish_reason == "length"


async def test_weights_by_somebody_else_are_noticed_without_a_request(engine: PooledEngine) -> None:
    foreign = {"new_version": "default", "abort_all_requests": False}
    await engine.link.client.post("/update_weight_version", foreign, within_s=30)
    await eventually(lambda: engine.load().error, within_s=60)
    assert "serves weights 'default', it was given version 0 here" in engine.load().error
    with pytest.raises(EngineError, match="was restarted, or somebody else changed its weights"):
        engine.generate(request("late"))


async def test_weights_by_somebody_else_end_a_running_stream(engine: PooledEngine) -> None:
    stream = engine.generate(request("running", count=200))
    await anext(stream)
    foreign = {"new_version": "astraflow-other.0", "abort_all_requests": False}
    await engine.link.client.post("/update_weight_version", foreign, within_s=30)
    with pytest.raises(EngineError, match="astraflow-other"):
        async for _ in stream:
            pass


async def test_a_server_that_was_left_paused_in_the_middle_of_an_update_is_taken_over(
    pool: Pool, engine: PooledEngine
) -> None:
    client = engine.link.client
    await client.post("/pause_generation", {"mode": "in_place"}, within_s=30)
    await client.post("/begin_weight_update", {}, within_s=30)
    await engine.stop()
    after = PooledEngine(pool, MODEL.files, OTHER.tensors, slots=4)
    try:
        await after.start()
        item = request("greedy", temperature=0.0)
        assert list((await read(after.generate(item))).tokens) == OTHER.greedy(item.prompt_tokens.tolist(), 24)
    finally:
        await after.stop()


async def test_what_was_changed_in_the_servers_memory_is_found_and_put_right(engine: PooledEngine) -> None:
    assert await engine.verify(MODEL.tensors) == ""
    name = "model.norm.weight"
    way = engine.link.way
    await engine.link.exchange(way.prepare({name: OTHER.tensors[name]}), 0)  # behind the engine's back
    assert "was not that version; it has been loaded in full now" in await engine.verify(MODEL.tensors)
    item = request("greedy", temperature=0.0)
    assert list((await read(engine.generate(item))).tokens) == MODEL.greedy(item.prompt_tokens.tolist(), 24)


@pytest.mark.parametrize("engine", [{"update": "disk"}, {"update": "tensors"}, {"update": "delta"}], indirect=True)
async def test_each_way_brings_the_same_weights(engine: PooledEngine) -> None:
    stream = engine.generate(request("running", count=120, temperature=0.0))
    first = await anext(stream)
    await engine.swap(3, OTHER.tensors)
    await read(stream, len(first.tokens))
    item = request("greedy", temperature=0.0)
    found = await read(engine.generate(item))
    assert list(found.tokens) == OTHER.greedy(item.prompt_tokens.tolist(), 24)
    assert {span.version for span in found.versions} == {3}
    assert await engine.verify(OTHER.tensors) == ""


@pytest.mark.parametrize("engine", [{"hang_s": 3.0}], indirect=True)
async def test_a_server_that_hangs_is_given_up(engine: PooledEngine) -> None:
    pids = await server_pids(engine.link.client)
    stream = engine.generate(request("running", count=200))
    await anext(stream)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match="hangs: nothing for 3 s"):
            async for _ in stream:
                pass
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def server_pids(client: Client) -> list[int]:
    """All processes that listen for a server: the one with its port, and its children."""
    port = client.url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        "pgrep", "-f", "--", f"--port {port} ", stdout=asyncio.subprocess.PIPE
    )
    found = [int(line) for line in (await process.communicate())[0].split()]
    assert found
    children = await asyncio.create_subprocess_exec(
        "pgrep", "-P", ",".join(map(str, found)), stdout=asyncio.subprocess.PIPE
    )
    return [*found, *(int(line) for line in (await children.communicate())[0].split())]


@pytest.mark.parametrize("engine", [{"update": "disk"}, {"update": "tensors"}], indirect=True)
async def test_a_version_without_changes_is_named_by_each_way(engine: PooledEngine) -> None:
    await engine.swap(5, {})
    found = await read(engine.generate(request("after", count=4)))
    assert {span.version for span in found.versions} == {5}


async def test_a_swap_that_fails_says_why_and_ends_the_engine(engine: PooledEngine) -> None:
    await engine.link.client.post("/begin_weight_update", {}, within_s=30)  # somebody else is at it too
    running = [engine.generate(request(str(number), count=200)) for number in range(8)][-1]
    await anext(running)
    with pytest.raises(EngineError, match="session is already open"):
        await engine.swap(4, OTHER.tensors)
    with pytest.raises(EngineError, match="session is already open"):
        async for _ in running:
            pass
    with pytest.raises(EngineError, match="session is already open"):
        engine.generate(request("late"))


@pytest.mark.parametrize("engine", [{"hang_s": 3.0}], indirect=True)
async def test_a_scheduler_that_hangs_before_the_first_token_is_noticed(engine: PooledEngine) -> None:
    pids = await server_pids(engine.link.client)
    for pid in pids[1:]:  # the HTTP process goes on answering
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match="hangs: nothing for 3 s"):
            await anext(engine.generate(request("running", count=200)))
    finally:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGCONT)


async def test_a_launched_server_that_is_killed_ends_its_streams_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = launched(CPU_ARGS)
    try:
        await engine.start()
        pids = await server_pids(engine.link.client)
        folder = engine.link.folder
        stream = engine.generate(request("running", count=200))
        await anext(stream)
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)  # the scheduler among them
        with pytest.raises(EngineError, match=r"the SGLang server (ended|was killed)"):
            async for _ in stream:
                pass
    finally:
        await engine.stop()
    assert not [pid for pid in pids if runs(pid)]
    printed = capsys.readouterr().err
    assert "api_key='***'" in printed or "'api_key': '***'" in printed  # SGLang prints its arguments
    assert folder not in folders_of(folder)


def folders_of(folder: Path) -> list[Path]:
    return list(folder.parent.iterdir())


def runs(pid: int) -> bool:
    """Neither gone nor a zombie, which only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"no_such_argument": 1}, "does not take engine.sglang.args: unrecognized arguments: --no-such-argument"),
        ({"max_total_tokens": "many"}, "nteger value: 'many'"),
        ({"mem_fraction_static": 0.0001}, "mem-fraction-static"),
    ],
    ids=["unknown", "type", "memory"],
)
async def test_what_the_server_does_not_take_is_said_in_its_own_words(changed: dict[str, Any], message: str) -> None:
    engine = launched({**CPU_ARGS, **changed})
    with pytest.raises(EngineError, match=message):
        await engine.start()
    await engine.stop()


async def test_a_server_with_another_model_is_refused(pool: Pool) -> None:
    other = tiny_model("qwen2")
    engine = PooledEngine(pool, other.files, other.tensors)
    try:
        with pytest.raises(EngineError, match=r"serves a llama model .*the policy is a qwen2 model"):
            await engine.start()
    finally:
        await engine.stop()


async def test_weights_that_the_servers_model_has_no_place_for_are_refused_by_name(pool: Pool) -> None:
    engine = PooledEngine(
        pool, MODEL.files, {**MODEL.tensors, "model.extra.weight": MODEL.tensors["model.norm.weight"]}
    )
    try:
        with pytest.raises(WeightsError, match=r"model\.extra\.weight"):
            await engine.start()
    finally:
        await engine.stop()


async def test_a_server_that_does_not_answer_or_starts_slowly_is_said(pool: Pool) -> None:
    nowhere = SglangSection(url=f"http://127.0.0.1:{free_port('127.0.0.1')}")
    for section, message in (
        (nowhere, "Cannot connect"),
        (
            SglangSection(args=dict(CPU_ARGS), start_within_s=1.0),
            "is not ready after engine.sglang.start_within_s = 1 s",
        ),
    ):
        engine = SglangEngine(MODEL.files, MODEL.tensors, section=EngineSection(kind="sglang", sglang=section))
        with pytest.raises(EngineError, match=message):
            await engine.start()
        await engine.stop()


async def test_an_interpreter_without_sglang_is_said_before_anything_starts(tmp_path: Path) -> None:
    for python, message in ((tmp_path / "no", "make sglang"), (Path("/usr/bin/true"), "has SGLang ,")):
        engine = launched(CPU_ARGS, python=str(python))
        with pytest.raises(EngineError, match=message):
            await engine.start()
        await engine.stop()


def launched(args: Any, **section: Any) -> SglangEngine:
    """An engine with a server of its own; not started."""
    server = SglangSection(args=dict(args), start_within_s=800, **section)
    return SglangEngine(MODEL.files, MODEL.tensors, section=EngineSection(kind="sglang", slots=8, sglang=server))
