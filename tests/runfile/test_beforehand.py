"""What is seen of a run file before anything is started: tokenizers, names that are taken, bounds that hold nothing."""

import json
import shutil
from pathlib import Path

import pytest

from astraflow.models.tiny import prepare_tiny
from astraflow.runfile import load, tokenizer_notes
from astraflow.runfile.environments import find
from tests.runfile.runfiles import TOY, error_of, load_light

REAL = ("policies.solver.engine.kind=cpu", "policies.solver.trainer.learner=torch")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(TOY)
    return tmp_path / "run.toml"


@pytest.fixture
def model(file: Path) -> Path:
    return Path(shutil.copytree(prepare_tiny("reverse"), file.parent / "model"))


def _found(file: Path, model: Path) -> list[str]:
    config = load_light(file, *REAL, f"policies.solver.model={model}", "policies.solver.sampling.max_new_tokens=4")
    return [f"{'.'.join(finding.path)}: {finding.problem}" for finding in find(config)]


def test_a_model_without_a_tokenizer_is_named(file: Path, model: Path) -> None:
    assert _found(file, model) == []
    (model / "tokenizer.json").rename(model / "elsewhere.json")
    (told,) = _found(file, model)
    assert told.startswith(f"policies.solver.model: {model} has no tokenizer.json; make it once with transformers")
    (model / "tokenizer.json").write_text((model / "elsewhere.json").read_text()[:100])
    told = error_of(file, *REAL, f"policies.solver.model={model}", environments=True)
    assert "tokenizer.json can't be read" in told


def test_a_model_without_a_chat_template_is_told(file: Path, model: Path) -> None:
    def notes() -> list[str]:
        return list(tokenizer_notes(load(file, [*REAL, f"policies.solver.model={model}"], environments=False)))

    with_template = notes()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    assert with_template == []
    (told,) = notes()
    assert "of policy solver has no chat template, so messages are joined by newlines" in told


def test_what_cannot_be_checked_here_is_said(file: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.runfile.tokenizer_checks._NEEDED", ("jinja2", "no_such_package"))
    (model / "tokenizer.json").unlink()
    assert _found(file, model) == []
    config = load(file, [*REAL, f"policies.solver.model={model}"], environments=False)
    (told,) = tokenizer_notes(config)
    assert "wasn't checked, no_such_package isn't installed here; run: pip install" in told


def test_names_of_sources_that_submissions_take_are_refused(file: Path) -> None:
    told = error_of(file, "sources.submitted-x={ env = 'game', group_size = 4 }")
    assert "names that begin with submitted- are for tasks that users submit; rename it" in told


@pytest.mark.parametrize("bound", [1, 10, 1023])
def test_a_bound_that_holds_no_version_is_refused(file: Path, bound: int) -> None:
    assert f"is {bound}, less than the parts of one version take" in error_of(file, f"bus.max_weights_bytes={bound}")
