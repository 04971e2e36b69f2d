"""What scripts use, as `import astraflow as af`: agents, and live runs as Python iterators.

chat    messages of a conversation, by who says them
orders  what a script wants of a live run
run     a live run as Python iterators
"""

from astraflow.api.chat import assistant, system, tool, user
from astraflow.api.run import Run, connect

__all__ = ["Run", "assistant", "connect", "system", "tool", "user"]
