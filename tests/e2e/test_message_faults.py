"""A run whose messages get lost, doubled and mixed up on the wire: nothing is lost or trained twice."""

from pathlib import Path

import pytest

from astraflow.bus import EmbeddedServer
from tests.cli.toyrun import finished, sets
from tests.e2e.finite import FiniteRun
from tests.faultproxy import Kind, Rates, every, proxied

# A reader begins again at a gap, and joining a run takes dozens of answers in a row: each must get
# through sometimes.
FAULTS = every(Rates(drop=0.2, duplicate=0.2, delay=0.2)) | {
    Kind.LOG: Rates(drop=0.1, duplicate=0.2, delay=0.1),
    Kind.PULL: Rates(drop=0.02, duplicate=0.2, delay=0.2),
    Kind.API: Rates(duplicate=0.2, delay=0.2),
}


@pytest.mark.slow
async def test_a_run_through_lost_doubled_and_late_messages(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    run = FiniteRun(name="faults", groups=4)
    (tmp_path / "run.toml").write_text(run.text())
    async with proxied(nats_server.port, seed=5, rates=FAULTS) as proxy:
        server = [f"bus.url={proxy.url}", f"bus.token_file={nats_server.token_file}"]
        code, output = await finished(tmp_path, "up", "run.toml", *sets(*server), within_s=200)
    assert code == 0, output
    assert run.broken(tmp_path / "runs/faults") == []
    untouched = [kind for kind in FAULTS if not proxy.counts[f"{kind} dropped"] + proxy.counts[f"{kind} doubled"]]
    assert untouched == []
