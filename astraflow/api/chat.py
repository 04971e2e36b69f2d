"""Messages of a conversation, by who says them."""

from astraflow.envs.base import ChatMessage


def system(content: str) -> ChatMessage:
    """What the model is to be."""
    return ChatMessage("system", content)


def user(content: str) -> ChatMessage:
    """What the model is asked."""
    return ChatMessage("user", content)


def assistant(content: str) -> ChatMessage:
    """What the model has said: give a reply's `text` back unchanged, and its tokens are used as they were sampled."""
    return ChatMessage("assistant", content)


def tool(content: str) -> ChatMessage:
    """What a tool gave back."""
    return ChatMessage("tool", content)
