"""A rank that is killed or frozen takes all of them along; what was saved before is there, and nothing else."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from astraflow.config import RanksSection
from astraflow.errors import ConfigError
from astraflow.learners.ranks import lead
from astraflow.learners.ranks.lead import RankedLearner
from astraflow.lifeline import EXIT_TOGETHER
from tests.learners.learner_cases import model_folder, section

WITHIN_S = 300.0
FREEZES_S = 10.0  # a busy machine may keep a live process silent for some of it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), tie_word_embeddings=True)


class Led:
    """A lead's process with one follower, and what it is asked."""

    def __init__(self, model: Path, folder: Path, *, silent_s: float = WITHIN_S) -> None:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.learners.ranks.lead_process", str(model), str(folder), str(silent_s)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.follower = int(self._line())
        self._watch = os.pidfd_open(self.follower)

    def ask(self, what: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """The lead's exit code and errors, once it and its follower are gone."""
        code = self.process.wait(WITHIN_S)
        assert select.select([self._watch], [], [], WITHIN_S)[0], "the follower outlives its lead"
        assert self.process.stderr
        return code, self.process.stderr.read()


@pytest.fixture
def led(model: Path, tmp_path: Path) -> Iterator[Led]:
    one = Led(model, tmp_path / "state")
    yield one
    one.process.kill()


def test_a_follower_killed_between_steps_ends_the_lead_which_says_so(led: Led) -> None:
    led.ask("step")
    os.kill(led.follower, signal.SIGKILL)
    code, errors = led.end()
    assert code == EXIT_TOGETHER
    assert f"rank 1 of 2 (process {led.follower}) ended with SIGKILL; all end" in errors.splitlines()[-1]


def test_a_frozen_lead_is_killed_by_its_followers(model: Path, tmp_path: Path) -> None:
    led = Led(model, tmp_path / "state", silent_s=FREEZES_S)
    assert led.ask("step")
    os.kill(led.process.pid, signal.SIGSTOP)
    code, errors = led.end()
    assert code == -signal.SIGKILL
    assert "the lead's line is silent" in errors


def test_after_a_kill_in_a_step_others_resume_what_was_saved_bit_for_bit_and_notice_one_that_freezes(
    model: Path, tmp_path: Path
) -> None:
    first = Led(model, tmp_path / "state")
    saved = first.ask("step")
    assert first.ask("save") == "saved"
    assert first.ask("step") != saved
    assert first.ask("steps") == "on"
    os.kill(first.follower, signal.SIGKILL)
    code, errors = first.end()
    assert code == EXIT_TOGETHER
    assert "rank 1 of 2" in errors.splitlines()[-1]

    second = Led(model, tmp_path / "state", silent_s=FREEZES_S)
    assert second.ask("restore") == saved
    assert second.ask("saves") == "on"
    os.kill(second.follower, signal.SIGSTOP)
    code, errors = second.end()
    assert code == EXIT_TOGETHER
    assert "has been silent" in errors.splitlines()[-1]


def test_training_goes_on_without_a_rank_that_does_not_start_but_not_with_fewer_than_min(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])

    monkeypatch.setattr(lead, "_start", broken)
    one = section(ranks=RanksSection(data=2, min=2))
    with pytest.raises(ConfigError, match=r"1 of 2 ranks came .* trainer\.ranks\.min is 2"):
        RankedLearner(model, one, seed=0, threads=1, temperature=1.0, reference_folder=None)
    assert not torch.distributed.is_initialized()
