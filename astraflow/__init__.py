"""AstraFlow: dataflow-oriented reinforcement learning for LLM agents. Importing it needs no torch.

    import astraflow as af

Names load when they are first used, so that a process imports what it works with and no more.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astraflow.api import Run, assistant, connect, system, tool, user
    from astraflow.envs import (
        Agent,
        AgentTask,
        ChatMessage,
        Environment,
        Grade,
        Outcome,
        PolicyHandle,
        Reply,
        SingleTurnEnv,
        agent,
    )
    from astraflow.errors import AstraflowError, BudgetError, BusError, ConfigError, EnvError
    from astraflow.gateway.client import TakenSession, sessions
    from astraflow.messages import Reason, Sampling

__version__ = "0.1.0"

_HOMES = {
    "astraflow.api": ("Run", "assistant", "connect", "system", "tool", "user"),
    "astraflow.envs": (
        "Agent",
        "AgentTask",
        "ChatMessage",
        "Environment",
        "Grade",
        "Outcome",
        "PolicyHandle",
        "Reply",
        "SingleTurnEnv",
        "agent",
    ),
    "astraflow.errors": ("AstraflowError", "BudgetError", "BusError", "ConfigError", "EnvError"),
    "astraflow.gateway.client": ("TakenSession", "sessions"),
    "astraflow.messages": ("Reason", "Sampling"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
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


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
