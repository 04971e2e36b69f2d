"""[policies.<name>.weights]: every combination that can't work is one sentence that says what to do."""

import importlib.util
import re
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.runfile import load
from tests.cli.toyrun import write_toy


def check(folder: Path, table: str, *more: str) -> None:
    load(write_toy(folder), [f"policies.solver.weights={{ {table} }}", *more], environments=False)


@pytest.mark.parametrize(
    "table",
    [
        "full_transport = 'nats'",
        "full_transport = 'http'",
        "full_transport = 'http', listen = '[::1]:0'",
        "full_transport = 'http', listen = '0.0.0.0:9000', advertise = 'trainer.lan', folder = 'served'",
        "full_transport = 'file', folder = '/tmp'",
        "full_transport = 'file', folder = '/tmp', full_on_nats = false",
    ],
)
def test_transports_that_work(tmp_path: Path, table: str) -> None:
    check(tmp_path, table)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("full_transport = 'ftp'", "expected one of nats, file, http"),
        ("full_transport = 'file'", "folder in --set .*: is '', expected the absolute path"),
        ("full_transport = 'file', folder = 'shared'", "expected the absolute path of a folder that every machine has"),
        ("full_transport = 'file', folder = '/nowhere'", "/nowhere is not a folder here; is it mounted"),
        ("folder = '/tmp'", 'folder .*is for full_transport = "file" or "http", and that is "nats"'),
        ("full_on_nats = false", 'full_on_nats .*is for full_transport = "file", and that is "nats"'),
        ("full_transport = 'http', full_on_nats = false", 'is for full_transport = "file", and that is "http"'),
        ("full_transport = 'file', folder = '/tmp', listen = 'a:1'", 'listen .*is for full_transport = "http"'),
        ("full_transport = 'http', listen = 'here'", "'here' is not like HOST:PORT; e.g. 10.0.0.5:0"),
        ("full_transport = 'http', listen = 'a:70000'", "'a:70000' is not like HOST:PORT"),
    ],
)
def test_transports_that_cannot_work(tmp_path: Path, table: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(tmp_path, table)


def test_a_frozen_policy_is_not_served_by_http(tmp_path: Path) -> None:
    file = write_toy(tmp_path)
    frozen = """
[policies.judge]
model = "toy"
engine = { kind = "toy" }
weights = { full_transport = "http" }
"""
    file.write_text(file.read_text() + frozen)
    last = len(file.read_text().splitlines())
    with pytest.raises(ConfigError, match=f"line {last}: the policy is never trained"):
        load(file, [], environments=False)


def test_other_machines_are_served_only_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cryptography" else object())
    check(tmp_path, "full_transport = 'http'")
    with pytest.raises(ConfigError, match=f"weights need TLS there.*{re.escape(install_hint('secure'))}"):
        check(tmp_path, "full_transport = 'http', listen = '10.0.0.5:0'")
