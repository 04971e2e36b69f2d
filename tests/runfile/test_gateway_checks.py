"""What a run file may say about programs over HTTP, and where the gateway may listen."""

from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.runfile import load
from tests.cli.toyrun import TOY, write_toy

KEYS = "\n[gateway]\n"


@pytest.mark.parametrize(
    ("env", "more", "words"),
    [
        ('command = "a"\nagent = "sessions"', "", "agent = 'sessions' plays it too; keep one of them"),
        ('command = "a \'b"', "", "can't be split into words: No closing quotation"),
        ('command = "   "', "", "has no program in it"),
        ('agent = "session"', "", "expected module:function, 'external' or 'sessions'"),
        ("", KEYS + 'listen = "0.0.0.0:80"', "others can reach 0.0.0.0, and keys would travel in the open"),
        ("", KEYS + 'listen = "80"', "'80' is not like HOST:PORT"),
        ("", KEYS + 'tls_key = "run.toml"', "belongs together with tls_key"),
        ("", KEYS + 'key_file = "no-such"', "file no-such does not exist"),
        ("", KEYS + 'lisen = "127.0.0.1:0"', "did you mean 'listen'"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, more: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_toy(tmp_path, TOY.replace('kind = "toy"\n\n[sources', f'kind = "toy"\n{env}\n\n[sources') + more)
    with pytest.raises(ConfigError) as caught:
        load(file, [])
    assert words in str(caught.value)


@pytest.mark.parametrize("env", ['command = "python a.py"', 'agent = "sessions"'])
def test_programs_are_accepted_and_a_deterministic_run_refuses_them(tmp_path: Path, env: str) -> None:
    file = write_toy(tmp_path, TOY.replace('kind = "toy"\n\n[sources', f'kind = "toy"\n{env}\n\n[sources'))
    assert load(file, []).envs["game"].by_http
    with pytest.raises(ConfigError, match="answer in any order, not deterministically"):
        load(file, ["run.deterministic=true"])
