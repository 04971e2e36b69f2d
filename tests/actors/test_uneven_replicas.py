"""Two replicas of one policy, one four times slower: each takes what it can serve."""

from collections import Counter
from pathlib import Path

from astraflow.bus.memory import MemoryServer
from astraflow.messages import ChunkKind
from tests.actors.contexts import context, running
from tests.actors.test_policy import Asker, policy, replica, slow
from tests.support import eventually

REQUESTS = 40


async def test_a_slow_replica_does_not_set_the_pace(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with (
        replica(memory_server, tmp_path, slow(0.02)) as (fast, _),
        context(memory_server, tmp_path, role="policy", config=slow(0.08), name="policy-slow-0") as slower,
        running(policy.run(slower)),
        Asker.open(fast.bus) as asker,
    ):
        await eventually(lambda: slower.member().state == fast.member().state)
        for number in range(REQUESTS):
            await asker.ask(str(number))
        await eventually(lambda: all(asker.finished(str(number)) for number in range(REQUESTS)))
        served = Counter(chunk.replica for chunk in asker.chunks if chunk.kind is ChunkKind.ACCEPTED)
    assert served.total() == REQUESTS
    assert served[fast.incarnation] >= 2 * served[slower.incarnation] > 0, (
        "with equal shares the slow one sets the pace"
    )
