"""Templates of prompts: `{question}` is filled in, other braces stay as they are.

What is a placeholder: a name in braces, `{question}`. What is not: `{}`, `{1}`, `{a+b}`, and a name that belongs to
LaTeX, as in `\\boxed{answer}`, `\\frac{a}{b}` and `x_{n}`; braces of LaTeX's stay around a value, `\\boxed{question}`.
Any other unknown name is a mistake; `{{name}}` gives a literal `{name}`. Values are filled in once: braces in a
question are never read. Pure.
"""

import re
from collections.abc import Collection, Mapping

from astraflow.errors import ConfigError
from astraflow.named import nearest

_NAME = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
_LATEX = re.compile(r"(?:\\(?![ntr]$)[A-Za-z]+\*?\s?(?:\[[^\]]*\])?|[\^_])$")  # a \n is a line's end written wrongly
_SEEN = 40  # characters before a brace that tell whether it is LaTeX's


class Template:
    """A text with placeholders.

    Args:
        text: of the template.
        known: names that can be filled in; the text must hold one of them.
        key: how error messages call it.

    Raises: ConfigError for an unknown placeholder, or none at all.
    """

    def __init__(self, text: str, known: Collection[str], *, key: str = "template") -> None:
        self._parts: list[tuple[str, str]] = []  # (literal text, name behind it); "" = none
        done, literal_ends = 0, -1
        literal = ""
        for match in _NAME.finditer(text):
            name = match[2]
            literal += text[done : match.start()]
            done = match.end()
            if name is None:
                literal += f"{{{match[1]}}}"
                continue
            # \frac{a}{b}: what follows LaTeX's braces directly is its too
            of_latex = match.start() == literal_ends or _LATEX.search(
                text[max(0, match.start() - _SEEN) : match.start()]
            )
            if of_latex:
                literal_ends = match.end()
            if name in known:
                self._parts.append((literal + "{" if of_latex else literal, name))
                literal = "}" if of_latex else ""
            elif of_latex:
                literal += match[0]
            else:
                raise ConfigError(
                    f"{key} has an unknown placeholder {match[0]}{nearest(name, known)}; literal braces are doubled: "
                    f"{{{match[0]}}}"
                )
        self._parts.append((literal + text[done:], ""))
        if not any(name for _, name in self._parts):
            raise ConfigError(f"{key} is {text!r:.80}, without {_one_of(known)}: every prompt would be the same")

    @property
    def names(self) -> frozenset[str]:
        """The placeholders that it has."""
        return frozenset(name for _, name in self._parts if name)

    def fill(self, values: Mapping[str, object]) -> str:
        """The text with the values in place. Raises KeyError for one that is missing."""
        return "".join(literal + (str(values[name]) if name else "") for literal, name in self._parts)


def without_placeholders(text: str, known: Collection[str], *, key: str) -> str:
    """A text that nothing is filled into. Raises ConfigError if it holds a placeholder of the template."""
    for match in _NAME.finditer(text):
        if match[2] in known:
            raise ConfigError(f"{key} holds {match[0]}, but nothing is filled in there; put it into template")
    return text


def _one_of(known: Collection[str]) -> str:
    names = [f"{{{name}}}" for name in sorted(known)]
    return names[0] if len(names) == 1 else f"any of {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
