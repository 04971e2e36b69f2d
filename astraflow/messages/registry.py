"""The types of messages by the name that an envelope has for them: each subclass of `Message` in these modules.

A name is the class's in snake_case, so a class is never renamed. Invariant: what is here has golden bytes.
"""

import re
from types import ModuleType

from astraflow.messages import control, episodes, generation, samples, weights
from astraflow.messages.message import Message

_MODULES = (episodes, generation, samples, weights, control)


def _types(module: ModuleType) -> list[type[Message]]:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Message)]
    return [kind for kind in kinds if kind.__module__ == module.__name__]


def _name(kind: type[Message]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


MESSAGE_TYPES: dict[str, type[Message]] = {_name(kind): kind for module in _MODULES for kind in _types(module)}
NAMES = {kind: name for name, kind in MESSAGE_TYPES.items()}
