"""summary.json and the reward curve, from hand-made histories."""

import json
import math
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from astraflow.actors.recorder.curves import draw_curves, episode_series, smooth
from astraflow.actors.recorder.summary import (
    BusFacts,
    Summary,
    build_summary,
    encode_summary,
    read_summary,
    render_summary,
)
from astraflow.messages import Head, Ledger, Metrics, Progress, Reason
from astraflow.messages.metric_names import (
    EVAL,
    EVAL_SIZE,
    LABEL_SET,
    TRAIN,
    TRAIN_LOSS,
    TRAIN_REWARD_MEAN,
    TRAIN_SAMPLES,
    TRAIN_SKIPPED,
)
from astraflow.view.history import EpisodeTotals, EvalPoint, History
from astraflow.view.jsonl_lines import encode_line, episode_line, read_episodes, read_metrics
from astraflow.view.wording import amount, change, counts, duration, sparkline
from tests.actors.run_in_progress import CONFIG, CREATED_AT, RECORD, episode, evaluation, train

FACTS = BusFacts(
    progress={
        "solver": Progress(
            policy="solver",
            consumed=30,
            step=30,
            version=30,
            epoch=1,
            finished=True,
            trained_tasks=1920,
            trained_digest="ab" * 32,
        )
    },
    heads={
        "solver": Head(
            policy="solver", version=31, step=30, epoch=1, manifest_sequence=9, full_manifest_sequence=9, finished=True
        )
    },
    ledgers={
        "solver": Ledger(policy="solver", counts={"issued": 2000, "emitted": 1920, "zero-advantage": 78, "infra": 2})
    },
)


def history_of(*messages: Metrics) -> History:
    history = History()
    for metrics in messages:
        history.add(metrics)
    return history


def totals_of(*episodes: object) -> EpisodeTotals:
    totals = EpisodeTotals()
    for one in episodes:
        totals.add(episode_line(one))  # type: ignore[arg-type]
    return totals


def summarise(history: History, totals: EpisodeTotals, *, stop_reason: str = "finished") -> Summary:
    return build_summary(
        CONFIG,
        RECORD,
        history=history,
        totals=totals,
        facts=FACTS,
        at=CREATED_AT + 320,
        up_s=300.0,
        stop_reason=stop_reason,
    )


def test_summary_has_before_and_after_of_every_set_and_policy() -> None:
    history = history_of(
        evaluation(0, 0.125), train(1), evaluation(10, 0.5), train(30), evaluation(30, 0.96875), train(2, policy="x")
    )
    totals = totals_of(episode(0), episode(1, reason=Reason.ENV), episode(2, reason=Reason.TRUNCATED))
    summary = summarise(history, totals)
    solver = summary.policies["solver"]
    assert solver.eval["held-out"].before == EvalPoint(step=0, version=0, correct=0.125, reward=0.225, size=64)
    assert (solver.eval["held-out"].after.correct, solver.eval["held-out"].after.step) == (0.96875, 30)
    assert (solver.steps, solver.steps_planned, solver.version, solver.finished) == (30, 30, 31, True)
    assert (solver.trained_tasks, solver.trained_digest) == (1920, "ab" * 32)
    assert solver.skipped == {"zero-advantage": 78, "infra": 2}
    assert (solver.trained_tokens, solver.generated_tokens) == (200, 6)  # two steps of 100; 3 tokens in two episodes
    assert (summary.seconds_to_first_step, summary.wall_s, summary.up_s) == (10.0, 320.0, 300.0)
    assert summary.episodes == {"env": 1, "ok": 1, "truncated": 1}
    assert summary.finished
    assert not summary.policies["judge"].trainable


def test_an_empty_last_batch_is_the_end_of_the_data_and_no_skipped_step() -> None:
    skipped = [
        Metrics(kind=TRAIN, at=CREATED_AT, policy="solver", step=3, batch=batch, values={TRAIN_SKIPPED: 1.0, **values})
        for batch, values in ((4, {TRAIN_SAMPLES: 8.0}), (5, {TRAIN_SAMPLES: 0.0}))
    ]
    summary = summarise(history_of(train(3), *skipped), EpisodeTotals())
    solver = summary.policies["solver"]
    assert solver.skipped_steps == 1
    assert "ended early" not in render_summary(summary)
    early = msgspec.structs.replace(summary, policies={"solver": msgspec.structs.replace(solver, steps=3)})
    assert "ended early its sources have no more tasks" in render_summary(early)


def test_summary_of_a_drained_run_is_not_finished_and_knows_no_first_step() -> None:
    summary = summarise(History(), EpisodeTotals(), stop_reason="drain")
    assert (summary.finished, summary.stop_reason, summary.seconds_to_first_step) == (False, "drain", None)
    assert "not finished" in render_summary(summary)


def test_summary_json_has_stable_keys_and_reads_back(tmp_path: Path) -> None:
    summary = summarise(history_of(evaluation(0, 0.1), train(1), evaluation(1, 0.9)), EpisodeTotals())
    path = tmp_path / "summary.json"
    path.write_bytes(encode_summary(summary))
    assert read_summary(path) == summary
    assert read_summary(tmp_path / "none.json") is None
    plain = json.loads(path.read_text())
    assert set(plain) == {
        "run",
        "incarnation",
        "finished",
        "stop_reason",
        "created_at",
        "ended_at",
        "wall_s",
        "up_s",
        "seconds_to_first_step",
        "policies",
        "episodes",
        "failure",
    }
    assert set(plain["policies"]["solver"]) == {
        "trainable",
        "steps",
        "steps_planned",
        "version",
        "finished",
        "seconds_to_first_step",
        "generated_tokens",
        "trained_tokens",
        "trained_tasks",
        "trained_digest",
        "staleness_mean",
        "staleness_max",
        "skipped_steps",
        "eval",
        "skipped",
        "ledger",
    }
    assert set(plain["policies"]["solver"]["eval"]["held-out"]["after"]) == {
        "step",
        "version",
        "correct",
        "reward",
        "size",
        "correct_se",
        "reward_se",
        "pass_at",
        "failed",
    }


def test_rendered_summary_says_what_a_person_asks() -> None:
    text = render_summary(summarise(history_of(evaluation(0, 0.125), train(1), evaluation(30, 0.96875)), totals_of()))
    for part in (
        "run demo: finished",
        "5 min 20 s",
        "first step after 10 s",
        "30 of 30 steps",
        "correct 0.12 → 0.97",
        "1,920 tasks",
        "zero-advantage 78, infra 2",
        "judge: frozen",
    ):
        assert part in text, text


def test_failures_stand_beside_the_means_that_leave_them_out() -> None:
    after = evaluation(1, 0.23)
    after = msgspec.structs.replace(after, values={**after.values, "eval.size": 13.0, "eval.failed": 19.0})
    assert "13 answers, 19 failed)" in render_summary(summarise(history_of(evaluation(0, 0.1), after), totals_of()))


def test_a_step_done_twice_counts_once_and_the_newer_lineage_wins() -> None:
    messages = [train(5, reward=0.1, lineage=1), train(6, lineage=1), train(5, reward=0.9, lineage=2)]
    for order in (messages, messages[::-1]):
        history = history_of(*order)
        assert history.of("solver").series(TRAIN_REWARD_MEAN) == [(5, 0.9), (6, 0.5)]


def test_skipped_steps_are_counted_apart_and_train_no_tokens() -> None:
    solver = summarise(history_of(train(1, skipped=1.0), train(2)), EpisodeTotals()).policies["solver"]
    assert (solver.skipped_steps, solver.trained_tokens, solver.seconds_to_first_step) == (1, 100, 20.0)


def test_repeats_are_in_the_summary_and_the_curve(tmp_path: Path) -> None:
    def point(step: int, **more: float) -> Metrics:
        metrics = evaluation(step, 0.25)
        more = {name.replace("pass_at_", "eval.pass_at_"): value for name, value in more.items()}
        return msgspec.structs.replace(metrics, values=metrics.values | more | {"eval.correct_se": 0.05})

    history = history_of(point(0, pass_at_2=0.4, pass_at_16=0.9), point(10, pass_at_2=0.5, pass_at_16=1.0))
    _, after = history.of("solver").first_and_last("held-out") or (None, None)
    assert after is not None
    assert (after.pass_at, after.correct_se, after.reward_se) == ({"2": 0.5, "16": 1.0}, 0.05, None)
    summary = build_summary(
        CONFIG,
        RECORD,
        history=history,
        totals=EpisodeTotals(),
        facts=FACTS,
        at=CREATED_AT + 60,
        up_s=60.0,
        stop_reason="finished",
    )
    assert "pass@2 0.40 → 0.50   pass@16 0.90 → 1.00" in render_summary(summary)
    draw_curves(tmp_path / "curve.png", run="demo", history=history, totals=EpisodeTotals())
    assert (tmp_path / "curve.png").stat().st_size > 10_000


def test_an_evaluation_without_a_notion_of_correct_stays_none() -> None:
    history = history_of(evaluation(0, math.nan))
    assert history.of("solver").evals["held-out"][0].correct is None
    nothing = Metrics(kind=EVAL, at=1.0, policy="solver", step=0, values={EVAL_SIZE: 0.0}, labels={LABEL_SET: "x"})
    assert history_of(nothing).of("solver").evals["x"][0].reward is None


def test_training_curve_is_by_version_and_leaves_evaluation_out() -> None:
    answered = [episode(0, reward=1.0, version=1), episode(1, reward=0.0, version=1), episode(2, reward=1.0, version=2)]
    totals = totals_of(*answered, episode(3, reason=Reason.GRADER))
    rewards, corrects = episode_series(history_of(train(1)).of("solver"), totals.by_version["solver"])
    assert rewards == corrects == [(1, 0.5), (2, 1.0)]


def test_curve_is_drawn_with_much_and_with_nothing(tmp_path: Path) -> None:
    steps = [train(step, reward=step / 30) for step in range(1, 31)]
    full = history_of(*steps, evaluation(0, 0.1), evaluation(30, 0.9))
    for name, history in (("full.png", full), ("empty.png", History())):
        draw_curves(tmp_path / name, run="demo", history=history, totals=totals_of(episode(0)))
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "full.png").stat().st_size > (tmp_path / "empty.png").stat().st_size


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_smoothing_stays_within_its_values_and_keeps_a_constant(values: list[float]) -> None:
    smoothed = [value for _, value in smooth(list(enumerate(values)))]
    assert len(smoothed) == len(values)
    assert math.isclose(smoothed[0], values[0], abs_tol=1e-9)
    slack = 1e-6 * max(1.0, max(abs(value) for value in values))
    assert all(min(values) - slack <= value <= max(values) + slack for value in smoothed)


def test_recorded_lines_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    messages = [train(1), evaluation(0, 0.5), Metrics(kind="train", at=1.0, values={TRAIN_LOSS: math.nan}, step=2)]
    path.write_bytes(b"".join(encode_line(metrics) for metrics in messages) + b'{"half": ')
    back = list(read_metrics(path))
    assert back[:2] == messages[:2]
    assert math.isnan(back[2].values[TRAIN_LOSS])
    flat = json.loads(path.read_bytes().splitlines()[0])
    assert (flat["train.reward_mean"], flat["policy"], flat["step"]) == (0.5, "solver", 1)


def test_episode_lines_are_readable_for_failures_too(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(encode_line(episode(3, version=4)) + encode_line(episode(4, reason=Reason.ENV)))
    fine, failed = read_episodes(path)
    assert (fine.prompt, fine.answer, fine.reason, fine.correct) == ("What is 3 + 0?", "3", "ok", 1.0)
    reply = fine.replies[0]
    assert (reply.text, reply.reward, reply.tokens, reply.versions, reply.finish_reason) == (
        "= 3",
        1.0,
        3,
        (4, 4),
        "stop",
    )
    assert (failed.reason, failed.replies, failed.correct) == ("env", (), None)
    assert "boom" in failed.error


def test_episode_text_can_be_left_out() -> None:
    line = episode_line(episode(3), text=False)
    assert (line.prompt, line.answer, line.replies[0].text, line.replies[0].reward) == ("", "", "", 1.0)


def test_numbers_read_well() -> None:
    assert [duration(s) for s in (0.04, 9.94, 42.4, 252, 7500)] == [
        "0.0 s",
        "9.9 s",
        "42 s",
        "4 min 12 s",
        "2 h 05 min",
    ]
    assert [amount(v) for v in (812, 1234567, 0.5, 123.45)] == ["812", "1.23 M", "0.50", "123.5"]
    assert (change(0.131, None), counts({"a": 0}), counts({"b": 2, "a": 2, "c": 1000})) == (
        "0.13 → -",
        "none",
        "c 1,000, a 2, b 2",
    )
    assert [sparkline(v) for v in ([], [1, 1], [0, math.nan, 7], list(range(8)))] == ["", "▁▁", "▁█", "▁▂▃▄▅▆▇█"]
