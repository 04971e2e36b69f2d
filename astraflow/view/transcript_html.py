"""Episodes as one HTML file that needs nothing else: no script, no network, light and dark.

What was said is text, never markup. Invariant: the page's policy lets a browser load and run nothing.
"""

from collections.abc import Iterable, Iterator
from html import escape

from astraflow.messages.printable import printable, printable_lines
from astraflow.view.jsonl_lines import EpisodeLine
from astraflow.view.transcript_text import conversation, speaker, title
from astraflow.view.transcripts import Numbered

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
details { border: 1px solid #8885; border-radius: .5rem; margin: .75rem 0; padding: .5rem .9rem; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: .95rem; margin: 1rem 0 .4rem; }
.said { border-left: 3px solid #8886; margin: .4rem 0; padding: .1rem .7rem; }
.assistant, .replies { border-color: #2a7; }
.user, .task { border-color: #37c; }
.tool { border-color: #b70; }
.error { border-color: #c33; }
.role { font-size: .8rem; opacity: .7; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: .87rem/1.45 ui-monospace, monospace; }
"""
_STYLED = ("system", "user", "assistant", "tool", "task", "replies", "error", "expected", "context")


def transcript_html(run: str, episodes: Iterable[Numbered]) -> Iterator[str]:
    """The page in pieces."""
    name = escape(printable(run))
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Episodes of {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Episodes of {name}</h1>\n"
    )
    for episode in episodes:
        yield from _episode(episode.number, episode.line)
    yield "</body>\n</html>\n"


def _episode(number: int, line: EpisodeLine) -> Iterator[str]:
    yield f'<details open id="episode-{number}">\n<summary>{escape(title(number, line))}</summary>\n'
    if line.error:
        yield _said("error", line.error)
    if line.answer:
        yield _said("expected", line.answer)
    if not line.replies and line.prompt:
        yield _said("task", line.prompt)
    for reply in line.replies:
        yield f"<h2>{escape(speaker(reply))}</h2>\n"
        for message in conversation(line, reply):
            yield _said(message.role, message.content)
    yield "</details>\n"


def _said(role: str, content: str) -> str:
    style = f"said {role}" if role in _STYLED else "said"
    return (
        f'<div class="{style}"><div class="role">{escape(printable(role))}</div>'
        f"<pre>{escape(printable_lines(content))}</pre></div>\n"
    )
