"""Environments: what a rollout runs for each task. They know nothing of the bus; heavy extras load on first use.

agents             an agent: a function of the user's that plays an environment
answers            from a reply's text to the answer in it, and the comparison with the expected one
arguments          helpers for constructors of environments
base               the environment protocol
code               problems that are solved by programs, and tests that judge them
math_env           mathematical questions from a file, judged by math-verify in killable processes
questions          reads question files
reasoning_gym_env  any task of reasoning-gym
registry           from [envs.<name>] of the run file to an environment
sandbox            running programs that nobody trusts
search             questions that are answered by searching, and what searches
single_turn        one prompt, one reply, one reward
tiny_env           the tiny models' tasks
toy_env            an environment for tests of everything around it
verifier_pool      a pool of killable processes that judge mathematical answers with math-verify
verifier_worker    the child process of `verifier_pool`
    gold               the expected answer of a question
    notation           how the same answer is written
    presets            published question sets by one word
    question_files     rows of question files
    templates          templates of prompts
    threads            daemon threads for the user's blocking code
    usercode           running code of the user's own
"""

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
