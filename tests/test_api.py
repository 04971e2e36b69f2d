"""The public surface: frozen, light, and every name there."""

import subprocess
import sys

import astraflow as af

PUBLIC = [
    "Agent",
    "AgentTask",
    "AstraflowError",
    "BudgetError",
    "BusError",
    "ChatMessage",
    "ConfigError",
    "EnvError",
    "Environment",
    "Grade",
    "Outcome",
    "PolicyHandle",
    "Reason",
    "Reply",
    "Run",
    "Sampling",
    "SingleTurnEnv",
    "TakenSession",
    "agent",
    "assistant",
    "connect",
    "sessions",
    "system",
    "tool",
    "user",
]


def test_the_public_names_are_these_and_load() -> None:
    assert af.__all__ == PUBLIC
    assert all(getattr(af, name) is not None for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(af))


def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys, astraflow; print(sorted(m for m in sys.modules if m.startswith(('astraflow', 'nats', 'torch'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['astraflow']"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(af, "nothing")
