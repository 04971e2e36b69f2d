"""Environments: what a rollout runs for each task. They know nothing of the bus; heavy extras load on first use."""

from astraflow.envs.base import (
    ChatMessage,
    Environment,
    Grade,
    Outcome,
    PolicyHandle,
    Reply,
    SingleTurnEnv,
)
from astraflow.envs.registry import build_env

__all__ = [
    "ChatMessage",
    "Environment",
    "Grade",
    "Outcome",
    "PolicyHandle",
    "Reply",
    "SingleTurnEnv",
    "build_env",
]
