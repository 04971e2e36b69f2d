"""What Prometheus is told of a run: names as its own linter wants them, what a real scrape gets, files that fit."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from astraflow.messages.metric_names import TABLE
from astraflow.ports import free_port
from astraflow.view.prometheus import Exposition, exported_name
from tests.actors.run_in_progress import evaluation, everybody, train, view_of
from tests.cli.toyrun import ENDLESS, finished, sets, started, write_toy
from tests.support import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
ABBREVIATED = re.compile(r"_(s|ms|b|mb|gb|per_s)(_|$)")  # what promtool's linter complains of
USED = re.compile(r"\bastraflow_[a-z_]+")


def test_every_metric_has_one_name_with_its_whole_unit() -> None:
    names = {row: exported_name(row) for row in TABLE}
    assert len(set(names.values())) == len(names)
    for row, name in names.items():
        assert re.fullmatch(r"astraflow_[a-z][a-z0-9_]*", name), name
        assert not ABBREVIATED.search(name), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket")), name  # a gauge's name must not
        assert name.endswith("_seconds") == (TABLE[row].unit == "s"), name
    assert names["train.wait_s"] == "astraflow_train_wait_seconds"
    assert names["policy.tokens_per_s"] == "astraflow_policy_tokens_per_second"
    assert names["eval.pass_at_<k>"] == "astraflow_eval_pass_at"


def samples_of(exposition: Exposition, *members: object) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in exposition.families(view_of(*(members or everybody()))):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_newest_value_of_each_part_of_the_run_is_shown() -> None:
    exposition = Exposition("demo")
    for step in (1, 2):
        exposition.take(train(step, reward=step / 10), "trainer-a")
    exposition.take(evaluation(0, correct=0.25), "dataflow-a")
    exposition.take(evaluation(1, correct=0.5), "dataflow-a")
    samples = samples_of(exposition)
    assert samples["astraflow_train_reward_mean"] == [({"run": "demo", "policy": "solver"}, 0.2)]
    assert [value for _, value in samples["astraflow_eval_correct"]] == [0.5], "rounds are no labels"
    ready = {labels["actor"]: value for labels, value in samples["astraflow_actor_ready"]}
    assert set(ready) == {m.actor for m in everybody()}
    assert set(ready.values()) == {1.0}


def known_names() -> set[str]:
    names = {exported_name(row) for row in TABLE}
    names |= set(samples_of(Exposition("demo"), *everybody()))
    return names | {"astraflow_tasks_ended_total", "astraflow_queue_messages", "astraflow_step"}


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "grafana/astraflow.json"])
def test_rules_and_dashboard_ask_for_what_there_is(file: str) -> None:
    text = (DEPLOY / file).read_text()
    used = set(USED.findall(text))
    assert len(used) > 3
    assert used - known_names() == set()
    if file.endswith(".json"):
        panels = json.loads(text)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.slow
async def test_a_live_run_is_scraped_until_it_ends(tmp_path: Path) -> None:
    write_toy(tmp_path)
    at = f"127.0.0.1:{free_port()}"

    async def page() -> str:
        def get() -> str:
            with urllib.request.urlopen(f"http://{at}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(get)

    async def steps() -> float:
        families = {family.name: family for family in text_string_to_metric_families(await page())}
        family = families.get("astraflow_step")
        return family.samples[0].value if family and family.samples else 0.0

    async def more_than(before: float) -> bool:
        return await steps() > before

    async with started(tmp_path, "up", "run.toml", *sets(*ENDLESS)) as up:
        await up.expect("solver step 2/")
        async with started(tmp_path, "prometheus", "--folder", "runs/demo", "--listen", at) as exporter:
            await exporter.expect(f"http://{at}/metrics")
            first = await eventually(steps)
            await eventually(lambda: more_than(first))
            code, output = await finished(tmp_path, "prometheus", "--folder", "runs/demo", "--listen", at)
            assert (code, "can't be listened on" in output, "Traceback" in output) == (1, True, False), output
            assert (await finished(tmp_path, "stop", "--folder", "runs/demo"))[0] == 0
            assert await exporter.end() == 0
