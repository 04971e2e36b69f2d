"""Episodes as people read them: which, and what a hostile text can't do to a terminal or a browser."""

import dataclasses
import html.parser
from pathlib import Path

import msgspec
import pytest

from astraflow.cli.main import main
from astraflow.errors import ConfigError
from astraflow.messages import Episode, Reason, Spoken
from astraflow.view.jsonl_lines import encode_line, numbered_episodes
from astraflow.view.transcripts import Choice, chosen
from tests.actors.run_in_progress import episode

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202etxt </pre><script>alert(1)</script> \ud800 &amp;"
TALK = (
    Spoken(role="system", content="You add."),
    Spoken(role="user", content="What is 3 + 0?\nThink."),
    Spoken(role="assistant", content="Three?"),
    Spoken(role="tool", content="Three is a word."),
    Spoken(role="assistant", content="= 3"),
)


def talked(number: int, *messages: Spoken, reward: float = 1.0, **changes: object) -> Episode:
    plain = episode(number, reward=reward)
    spoken = msgspec.structs.replace(
        plain.trajectories[0], messages=messages, role="adder", reward_parts={"format": 0.5}
    )
    return msgspec.structs.replace(plain, trajectories=(spoken,), **changes)


def folder_of(tmp_path: Path, *episodes: Episode) -> Path:
    (tmp_path / "episodes.jsonl").write_bytes(b"".join(map(encode_line, episodes)))
    return tmp_path


def numbers(folder: Path, **choice: object) -> list[int]:
    lines = numbered_episodes(folder / "episodes.jsonl")
    return [each.number for each in chosen(lines, Choice(**choice))]  # type: ignore[arg-type]


def test_a_conversation_reads_from_its_beginning_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder_of(tmp_path, talked(3, *TALK)))]) == 0
    shown = capsys.readouterr().out
    said = ["You add.", "What is 3 + 0?", "Think.", "Three?", "Three is a word.", "= 3"]
    places = [shown.index(f"│ {text}\n") for text in said]
    assert places == sorted(places)
    assert "#1 · task inc-1/train/0/3/0 · env sums · ok · correct 1 · 1.0 s" in shown
    assert "solver as adder · reward 1 (format 0.5) · 3 tokens · version 0 · stop" in shown


def test_a_run_that_kept_no_messages_shows_task_and_replies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder_of(tmp_path, episode(3), episode(4, reason=Reason.ENV)))]) == 0
    shown = capsys.readouterr().out
    assert "task │ What is 3 + 0?\n  replies │ = 3" in shown
    assert "error │ the environment raised ValueError: boom" in shown


def test_episodes_are_chosen_by_what_they_earned_and_by_names(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        *(talked(number, *TALK, reward=reward) for number, reward in enumerate((0.5, -1.0, 2.0, 0.5))),
        episode(4, reason=Reason.ENV),
        talked(5, *TALK, eval_set="held-out", eval_round=1),
    )
    assert numbers(folder) == [2, 3, 4, 5, 6]
    assert numbers(folder, last=1) == [6]
    assert numbers(folder, worst=2) == [2, 1]
    assert numbers(folder, best=1) == [3]
    assert numbers(folder, episode=4) == [4]
    assert numbers(folder, task="train/0/2") == [3]
    assert numbers(folder, task="inc-1/train/0/2/0") == [3]
    assert numbers(folder, reason="env") == [5]
    assert numbers(folder, eval_set="held-out") == [6]
    assert numbers(folder, policy="adder", last=9) == [1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"policy": "slover"}, "no episode of 2 in the file fits; no policy is 'slover'; did you mean 'solver'?"),
        ({"eval_set": "x"}, "no evaluation is 'x'"),
        ({"env": "sum"}, "no env is 'sum'; did you mean 'sums'"),
        ({"task": "train/9"}, "no task is 'train/9'"),
        ({"episode": 3}, "they are numbered 1 to 2"),
        ({"reason": "okay"}, "no reason is 'okay'; did you mean 'ok'"),
    ],
)
def test_what_nothing_fits_is_told_with_what_was_meant(tmp_path: Path, choice: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        numbers(folder_of(tmp_path, episode(3), episode(4)), **choice)


def test_a_damaged_or_half_written_line_hides_no_other(tmp_path: Path) -> None:
    whole = encode_line(episode(3))
    (tmp_path / "episodes.jsonl").write_bytes(whole + b"\xff{]\n" + whole + whole[:40])
    assert numbers(tmp_path) == [1, 3]


def test_a_folder_without_episodes_is_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert "has no episodes.jsonl, which a run's recorder writes" in capsys.readouterr().err


def test_nothing_that_was_said_reaches_a_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = HOSTILE.replace("\ud800", "")  # JSON has none
    folder = folder_of(tmp_path, talked(3, Spoken(role=said, content=said), env=said, error=said, answer=said))
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert not [char for char in shown if not char.isprintable() and char != "\n"]


@dataclasses.dataclass
class _Tags(html.parser.HTMLParser):
    found: list[str] = dataclasses.field(default_factory=list)
    data: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.data += data


def test_the_html_file_needs_nothing_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = HOSTILE.replace("\ud800", "")
    folder = folder_of(
        tmp_path, talked(3, *TALK, Spoken(role='"><script>', content=said), env=said, error=said, answer=said)
    )
    assert main(["show", str(folder), "--html", str(tmp_path / "out.html")]) == 0
    assert "1 episodes are in" in capsys.readouterr().out
    tags = _Tags()
    tags.feed((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert not {"script", "link", "img", "iframe"} & set(tags.found)
    assert "</pre><script>alert(1)</script>" in tags.data  # as text
    assert "\x1b" not in tags.data
    assert "Three is a word." in tags.data
    assert main(["show", str(folder), "--html", str(tmp_path / "no/such/out.html")]) == 2
    assert "can't be written" in capsys.readouterr().err
