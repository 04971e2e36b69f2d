"""From a reply's text to the program in it. Pure."""

import re

_FENCE = re.compile(r"```[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_LANGUAGES = ("", "python", "python3", "py", "py3")
_LONGEST = 1 << 18


def program_in(text: str) -> str:
    """The last fenced block of Python, closed or not; without one, the whole text. "" if there is nothing."""
    text = text[-_LONGEST:].replace("\r\n", "\n")
    if "```" not in text:
        return text.strip("\n")
    blocks = [block for language, block in _FENCE.findall(text) if language.lower() in _LANGUAGES and block.strip()]
    return blocks[-1] if blocks else ""


def completed(start: str, program: str, name: str) -> str:
    """The whole source where a function was to be completed, and `program` is the function or only its body.

    What stands before the function in `start`, such as imports, is there in any case.
    """
    if re.search(rf"^\s*(?:async\s+)?def\s+{re.escape(name)}\b", program, re.MULTILINE):
        return f"{start.rstrip()}\n    pass\n\n{program}"
    first = next((line for line in program.splitlines() if line.strip()), "")
    indented = first[:1] in (" ", "\t")
    body = program if indented else "".join(f"    {line}" for line in program.splitlines(keepends=True))
    return f"{start.rstrip()}\n{body}"
