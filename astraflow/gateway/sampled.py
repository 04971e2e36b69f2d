"""What a policy really said, found again in what clients send back.

Clients parse a reply and write it anew: arguments without spaces, `null` for an empty text, a stop string put back. For
the tokens of record to be used, each such form must lead to the text that was sampled. It decides nothing about forks:
what isn't found goes on as the client tells it, and the recording counts it.
Invariant: a message that leads to a sampled text has its role, its words and its calls, names and arguments alike.
"""

from collections.abc import Sequence

from astraflow.envs.base import ChatMessage
from astraflow.gateway import tool_text
from astraflow.gateway.vocabulary import Said, ToolCall

_Form = tuple[str, tuple[tuple[str, str, str], ...]]


class SampledForms:
    """The replies of one session, by the forms in which they may come back."""

    def __init__(self) -> None:
        self._texts: dict[_Form, str] = {}

    def add(self, sampled: str, shown: str, calls: Sequence[ToolCall], *, stopped_at: str = "") -> None:
        """A reply was `sampled`; the client sees `shown` and the calls. `stopped_at`: the stop string it was cut at."""
        for ending in {"", stopped_at}:
            for with_ids in (True, False):
                self._texts[_form(shown + ending, calls, with_ids=with_ids)] = sampled

    def message(self, said: Said) -> ChatMessage:
        """The message as the policy is to see it."""
        if said.role != "assistant":
            return ChatMessage(said.role, said.text)
        for with_ids in (True, False):  # ids tell apart what was said twice; some clients make their own
            if (text := self._texts.get(_form(said.text, said.calls, with_ids=with_ids))) is not None:
                return ChatMessage("assistant", text)
        parts = [said.text.strip(), *(tool_text.write(call.name, call.arguments) for call in said.calls)]
        return ChatMessage("assistant", "\n".join(filter(None, parts)) if said.calls else said.text)


def _form(text: str, calls: Sequence[ToolCall], *, with_ids: bool) -> _Form:
    return text.strip(), tuple(
        (call.id if with_ids else "", call.name, tool_text.canonical(call.arguments)) for call in calls
    )
