"""Environments: what a rollout runs for each task. They know nothing of the bus; heavy extras load on first use."""

from astraflow.envs.agents import Agent, AgentTask, agent
from astraflow.envs.base import ChatMessage, Environment, Outcome, PolicyHandle, Reply
from astraflow.envs.registry import build_env
from astraflow.envs.single_turn import Grade, SingleTurnEnv

__all__ = [
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
    "build_env",
]
