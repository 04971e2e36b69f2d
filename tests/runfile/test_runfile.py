"""Reading run files: overrides, and every error with its place and its next step."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from astraflow.config import EngineSection
from astraflow.errors import ConfigError
from astraflow.runfile.overrides import parse
from tests.runfile.runfiles import TOY, error_in, error_of, load_light, mistakes_in

# --- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("run.seed=7", 7),
        ("run.seed = 7", 7),
        ("policies.solver.trainer.learning_rate=1e-6", 1e-6),
        ("run.deterministic=true", True),
        ("run.name=demo2", "demo2"),
        ('run.name="demo2"', "demo2"),
        ("run.name=2024", "2024"),
        ("run.folder=/data/my runs", "/data/my runs"),
        ("bus.url=", ""),
        ("policies.solver.trainer.filters=['truncated']", ["truncated"]),
        ("envs.game.args.word=true", True),
        ("envs.game.args.word=plain-word", "plain-word"),
        ("policies.solver.engine={ kind = 'toy', slots = 3 }", {"kind": "toy", "slots": 3}),
    ],
)
def test_override_values(text: str, value: Any) -> None:
    assert parse(text)[1] == value


def test_the_last_override_wins(file: Path) -> None:
    assert load_light(file, "run.seed=1", "run.seed=2").run.seed == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.seed", "--set run.seed: no value; write --set KEY=VALUE, e.g. --set run.seed=1"),
        (
            "run..seed=1",
            "--set run..seed=1: 'run..seed' is not a key; write names joined by single dots, e.g. run.seed",
        ),
        ("=1", "--set =1: '' is not a key; write names joined by single dots, e.g. run.seed"),
        ("run.seed=", '--set run.seed=: the value is empty; write run.seed="" for an empty text'),
        ("run.seed=[1", "--set run.seed=[1: '[1' is neither a TOML value nor a plain word: "),
        ("run.seed=1\nx = 2", "--set run.seed=1\\nx = 2: one value is expected, not several lines"),
        ("run.name.first=a", "--set run.name.first=a: run.name is a value, not a table; set it as a whole"),
        ("run.sead=1", "unknown key run.sead in --set run.sead=1; did you mean 'seed'?"),
        ("rum.seed=1", "unknown key rum in --set rum.seed=1; did you mean 'run'?"),
        ("trainer.steps=1", "unknown key trainer in --set trainer.steps=1; did you mean 'policies.<name>.trainer'?"),
        ("run.seed=one", 'run.seed in --set run.seed=one: expected int, got "one"'),
        (
            "policies.solvr.trainer.steps=3",
            "policies.solvr.model in --set policies.solvr.trainer.steps=3 is missing; did you mean 'solver'?",
        ),
    ],
)
def test_wrong_overrides_are_explained(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_light(file, override)
    assert str(caught.value).replace("\n", "\\n").startswith(message)


# --- wrong files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "no.toml") == f"run file {tmp_path / 'no.toml'} does not exist"
    assert "is a folder" in error_of(tmp_path)


def test_broken_toml_names_the_line(file: Path) -> None:
    assert "is not valid TOML" in error_in(file, "[run\n")
    assert "line 2" in error_in(file, "[run]\nname = \n")
    file.write_bytes(b"[run]\nname = '\xff'\n")
    assert "is not UTF-8 text" in error_of(file)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "steps = 4",
            "stepps = 4",
            "unknown key policies.solver.trainer.stepps in {file} line 9; did you mean 'steps'?",
        ),
        ("[run]", "[rum]", "unknown key rum in {file} line 1; did you mean 'run'?"),
        (
            "name =",
            "qqq =",
            "unknown key run.qqq in {file} line 2; expected one of name, seed, folder, stop_when, deterministic",
        ),
        ("steps = 4", "", "policies.solver.trainer.steps in {file} line 8 is missing"),
        ('model = "toy"', "", "policies.solver.model in {file} line 4 is missing"),
        ("steps = 4", 'steps = "many"', 'policies.solver.trainer.steps in {file} line 9: expected int, got "many"'),
        ("steps = 4", "steps = 4.5", "policies.solver.trainer.steps in {file} line 9: expected int, got 4.5"),
        ("steps = 4", "steps = true", "policies.solver.trainer.steps in {file} line 9: expected int, got true"),
        ("steps = 4", "steps = 0", "policies.solver.trainer.steps in {file} line 9: expected int >= 1, got 0"),
        ("steps = 4", "steps = -3", "policies.solver.trainer.steps in {file} line 9: expected int >= 1, got -3"),
        (
            "steps = 4",
            "steps = 99999999999999999999",
            "policies.solver.trainer.steps in {file} line 9: a 64-bit integer is expected, got 99999999999999999999",
        ),
        ("group_size = 4", "group_size = 0", "sources.game.group_size in {file} line 17: expected int >= 1, got 0"),
        ("size = 8", "size = -8", "eval.held-out.size in {file} line 21: expected int >= 1, got -8"),
        (
            "steps = 4",
            "steps = 4\nlearning_rate = nan",
            "policies.solver.trainer.learning_rate in {file} line 10: a finite number is expected, got nan",
        ),
        (
            "steps = 4",
            "steps = 4\nlearning_rate = -1e-5",
            "policies.solver.trainer.learning_rate in {file} line 10: expected float >= 0.0, got -1e-05",
        ),
        (
            'learner = "toy"',
            'learner = "torhc"',
            'policies.solver.trainer.learner in {file} line 10: expected one of torch, toy, got "torhc";'
            " did you mean 'torch'?",
        ),
        (
            "steps = 4",
            'steps = 4\nfilters = ["truncate"]',
            "policies.solver.trainer.filters in {file} line 10: unknown filter kind 'truncate';"
            " did you mean 'truncated'?; or module:Class of your own",
        ),
        (
            "steps = 4",
            'steps = 4\nfilters = "truncated"',
            'policies.solver.trainer.filters in {file} line 10: expected list, got "truncated"',
        ),
        (
            'name = "demo"',
            'name = "My Run"',
            'run.name in {file} line 2: expected 1 to 32 of a-z, 0-9 and - (not at first), got "My Run"',
        ),
        (
            'name = "demo"',
            'name = ""',
            'run.name in {file} line 2: expected 1 to 32 of a-z, 0-9 and - (not at first), got ""',
        ),
        (
            'name = "demo"',
            'name = "-rf"',
            'run.name in {file} line 2: expected 1 to 32 of a-z, 0-9 and - (not at first), got "-rf"',
        ),
        (
            'name = "demo"',
            'name = "demo\\n"',
            'run.name in {file} line 2: a text without control characters is expected, got "demo\\n"',
        ),
        (
            "[envs.game]",
            "[envs.Game]",
            "envs.Game in {file} line 12: a name is 1 to 32 of a-z, 0-9 and - (not at first)",
        ),
        ("[eval.held-out]", "[eval]", "eval.env in {file} line 20: stands right under eval; put it in [eval.<name>]"),
        (
            'kind = "toy"\n\n[sources',
            'kind = "toy"\nargs = { since = 2020-01-01 }\n\n[sources',
            "envs.game.args.since in {file} line 14: dates and times are not supported, got 2020-01-01;"
            " write it as text",
        ),
        (
            'kind = "toy"\n\n[sources',
            'kind = "toy"\nargs = 3\n\n[sources',
            "envs.game.args in {file} line 14: expected a table, got 3",
        ),
    ],
)
def test_wrong_keys_and_values_are_named_with_their_line(file: Path, old: str, new: str, message: str) -> None:
    assert old in TOY
    assert message.format(file=file) in mistakes_in(error_in(file, TOY.replace(old, new, 1)))


def test_missing_tables_are_named(file: Path) -> None:
    missing = [f"{table} in {file} is missing; add a table [{table}.<name>]" for table in ("policies", "envs")]
    assert mistakes_in(error_in(file, "run = 3\n")) == [f"run in {file} line 1: expected a table, got 3", *missing]
    assert mistakes_in(error_in(file, "")) == [f"run in {file} is missing; add a table [run]", *missing]
    assert mistakes_in(error_in(file, '[run]\nname = "x"\n')) == missing


MANY = """\
[run]
nmae = "demo"
seed = -1

[policies.solver]
model = "smollm"
engine = { kind = 3 }

[policies.solver.trainer]
steps = "four"
warmup_steps = 9
max_stalenes = 0
prefetch = 2
learner = "toy"
filters = ["zero-advantage", "truncate"]

[policies.judge]
model = "toy"
engine = { kind = "toy", slots = 0, context_length = 100 }
sampling = { max_new_tokens = 100 }

[envs.game]
kind = "toy"
args = { no_such = 1 }

[envs.other]
kind = "my-env"
args = { policy = "jugde" }

[sources.game]
env = "gaem"
group_size = 1

[eval]
held-out = { env = "game", size = 8.5 }
"""


def test_all_mistakes_are_told_at_once_and_no_consequence_of_one_as_another(file: Path) -> None:
    file.write_text(MANY)
    told = mistakes_in(error_of(file, "node.rollouts=many", "node..threads=1", environments=True))
    solver, at, kinds = "policies.solver", f"in {file} line", get_args(get_type_hints(EngineSection)["kind"])
    assert told == [
        "--set node..threads=1: 'node..threads' is not a key; write names joined by single dots, e.g. run.seed",
        f"unknown key run.nmae {at} 2; did you mean 'name'?",
        f"run.seed {at} 3: expected int >= 0, got -1",
        f"{solver}.engine.kind {at} 7: expected one of {', '.join(kinds)}, got 3",
        f"unknown key {solver}.trainer.max_stalenes {at} 12; did you mean 'max_staleness'?",
        f'{solver}.trainer.steps {at} 10: expected int, got "four"',
        f"policies.judge.engine.slots {at} 19: expected int >= 1, got 0",
        f"eval.held-out.size {at} 35: expected int, got 8.5",
        'node.rollouts in --set node.rollouts=many: expected int, got "many"',
        f"sources.game.env {at} 31: there is no [envs.gaem]; did you mean 'game'?",
        f"envs.other.args.policy {at} 28: there is no [policies.jugde]; did you mean 'judge'?",
        f"sources.game.group_size {at} 32: is 1, smaller than dataflow.min_group_size = 2, so no group could be"
        " trained",
        f"sources.game.group_size {at} 32: a group of 1 has advantage 0 and policies.solver.trainer.filters drops it;"
        " use at least 2",
        f"{solver}.model {at} 6: model folder smollm does not exist (looked in {file.parent}); did you mean"
        " 'smollm2-135m-instruct'?",
        f"policies.judge.sampling.max_new_tokens {at} 20: 100 new tokens leave no room for a prompt in"
        " engine.context_length = 100",
        f"{solver}.trainer.filters {at} 15: unknown filter kind 'truncate'; did you mean 'truncated'?; or module:Class"
        " of your own",
        f"envs.game {at} 22: environment toy takes no argument 'no_such'; known: fail_every, flat_share, policies,"
        " seed, size, turns",
        f"envs.other {at} 26: unknown environment kind 'my-env'; known: code, math, reasoning-gym, search, tiny, toy;"
        " or module:Class of your own",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "run = 3",
        "policies = 3",
        "envs = 3",
        "sources = 3",
        "eval = 3",
        "policies.solver = 3",
        "bus = 3",
        "policies.solver.trainer = 3",
        "envs.game = 3",
        "sources.game = 3",
        "envs.game.args = 3",
        "envs.game.roles = 3",
        "dataflow = 3",
        "policies.solver.trainer.loss = 3",
        "policies.solver.trainer.replay = 3",
        "policies.solver.model = 3",
        "policies.solver.sampling = 3",
        "envs.game.args.policy = ['solver']",
        "envs.game.args.policies = 3",
        "envs.game.roles = { a = 3 }",
    ],
    ids=lambda text: text.split(" =")[0] + ("2" if "{" in text else ""),
)
def test_whatever_is_wrong_the_rest_is_checked_without_a_crash(file: Path, wrong: str) -> None:
    key, _, value = wrong.partition(" = ")
    told = mistakes_in(error_of(file, f"{key}={value}", "node.threads=-1", "record.keep_episods=true"))
    assert any(each.startswith(f"{key} in --set {key}=") or each.startswith(f"{key}.a in --set") for each in told), told
    assert "unknown key record.keep_episods in --set record.keep_episods=true; did you mean 'keep_episodes'?" in told
    assert "node.threads in --set node.threads=-1: expected int >= 0, got -1" in told


# --- what keys mean together


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["sources.game.env=gaem"],
            "sources.game.env in --set sources.game.env=gaem: there is no [envs.gaem]; did you mean 'game'?",
        ),
        (
            ["eval.held-out.env=other"],
            "eval.held-out.env in --set eval.held-out.env=other: there is no [envs.other]; there are game",
        ),
        (
            ["policies.solver.trainer.max_staleness=0", "policies.solver.trainer.prefetch=1"],
            "prefetch in --set policies.solver.trainer.prefetch=1: is 1, but max_staleness = 0 allows no batch",
        ),
        (["run.deterministic=true", "policies.solver.engine.replicas=2"], "is 2; run.deterministic needs exactly 1"),
        (
            ["run.deterministic=true", "node.rollouts=2"],
            "node.rollouts in --set node.rollouts=2: is 2; run.deterministic",
        ),
        (["run.deterministic=true"], "max_staleness in {file} line 8: is 1; run.deterministic needs 0"),
        (
            [
                "run.deterministic=true",
                "policies.solver.trainer.max_staleness=0",
                "policies.solver.trainer.device=auto",
            ],
            "trainer.device=auto: is auto; run.deterministic needs cpu",
        ),
        (
            ["run.deterministic=true", "policies.solver.trainer.max_staleness=0", "policies.solver.engine.slots=31"],
            "slots=31: is 31; run.deterministic starts the 32 requests of a batch together",
        ),
        (
            ["run.deterministic=true", "policies.solver.trainer.max_staleness=0", "node.episodes_per_rollout=31"],
            "is 31; run.deterministic plays the 32 episodes of a batch together",
        ),
        (
            [
                "run.deterministic=true",
                "policies.solver.trainer.max_staleness=0",
                "eval.test.env=game",
                "eval.test.size=20",
                "eval.test.repeats=4",
            ],
            "is 64; run.deterministic plays the 80 episodes of an evaluation of test together",
        ),
        (
            ["policies.solver.trainer.ranks.tensor=2"],
            "is 2, but a model is cut among data × replicate ranks only so far",
        ),
        (["policies.solver.trainer.ranks.context=2"], "is 2, but a model is cut among data × replicate ranks only"),
        (["policies.solver.trainer.ranks.experts=4"], "is 4, but a model is cut among data × replicate ranks only"),
        (["policies.solver.trainer.ranks.min=3"], "is 3, more than the 1 ranks of data × replicate"),
        (["policies.solver.trainer.ranks.data=2"], "the toy learner is one process"),
        (
            ["policies.solver.trainer.ranks.data=2", "policies.solver.trainer.device=auto"],
            'is "auto", but several ranks compute on the CPU only so far',
        ),
        (["policies.solver.trainer.warmup_steps=9"], "is 9, more than the 4 steps of the run"),
        (["sources.game.group_size=1", "dataflow.min_group_size=1"], "a group of 1 has advantage 0"),
        (
            ["dataflow.min_group_size=5"],
            "sources.game.group_size in {file} line 17: is 4, smaller than dataflow.min_group_size = 5",
        ),
        (["policies.solver.engine.context_length=256"], "256 new tokens leave no room for a prompt"),
        (
            ["eval.test.env=game", "eval.test.max_new_tokens=600", "policies.solver.engine.context_length=512"],
            "600 new tokens leave no room for a prompt in policies.solver.engine.context_length = 512",
        ),
        (["policies.solver.sampling.top_p=0.9"], "can't be trained: top_p = 0.9 cuts the distribution"),
        (["policies.solver.sampling.top_k=20"], "sampling.top_k"),
        (["policies.solver.sampling.temperature=0"], "temperature = 0 is greedy"),
        (["policies.solver.sampling.temperature=0.01"], "use at least 0.05"),
        (["policies.solver.engine.kind=cpu"], "mixes toy parts (model, trainer.learner) with real ones (engine.kind)"),
        (["policies.solver.model=smollm"], "model folder smollm does not exist (looked in "),
        (["policies.solver.model=smollm"], "did you mean 'smollm2-135m-instruct'?"),
        (
            ["policies.judge.model=toy", "policies.judge.engine.kind=toy", "envs.game.kind=tiny"],
            "envs.game.args.policy in {file} line 12: is missing",
        ),
        (
            ["policies.judge={ model = 'toy', engine = { kind = 'toy' } }", "envs.game.args.policy=jugde"],
            "there is no [policies.jugde]; did you mean 'judge'?",
        ),
        (["envs.game.args.policy=3"], "expected the name of a policy, got 3"),
        (
            ["envs.game.args.policies=solver"],
            "envs.game.args.policies in --set envs.game.args.policies=solver: expected a list",
        ),
        (
            [
                "policies.judge={ model = 'toy', engine = { kind = 'toy' }, trainer = { steps = 1, learner = 'toy' } }",
                "envs.game.args.policy=solver",
            ],
            "no source feeds this policy; add a source whose environment has args.policy = 'judge'",
        ),
        (
            ["bus.token_file=token"],
            "bus.token_file in --set bus.token_file=token: is for an external server; set bus.url too",
        ),
        (["bus.url=nats://h:1", "bus.token_file=token"], "file token does not exist"),
        (["bus.token_file=a", "bus.credentials_file=b"], "token_file is given too; keep one of them"),
    ],
)
def test_keys_that_disagree_are_explained(file: Path, overrides: list[str], message: str) -> None:
    assert message.format(file=file) in error_of(file, *overrides)


def test_without_staleness_nothing_is_prefetched_by_default(file: Path) -> None:
    trainer = load_light(file, "policies.solver.trainer.max_staleness=0").policies["solver"].trainer
    assert trainer is not None
    assert trainer.prefetch == 0


def test_a_run_needs_something_to_do(file: Path) -> None:
    head = TOY.split("[policies.solver.trainer]")[0] + '[envs.game]\nkind = "toy"\n[sources]\n'
    assert "nothing to do" in error_in(file, head)
    assert "at least one table [sources.<name>] is needed" in error_in(file, TOY.split("[sources")[0] + "[sources]\n")
    assert "at least one table [policies.<name>]" in error_in(file, '[run]\nname="x"\n[policies]\n[envs]\n[sources]\n')
