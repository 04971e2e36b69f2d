"""Templates: what is filled in, what stays, what is refused."""

import pytest

from astraflow.envs.templates import Template
from astraflow.errors import ConfigError

KNOWN = ("question", "hint")


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{question}", "1+1"),
        ("{question} {hint} {question}", "1+1 {question} 1+1"),  # values aren't read again
        ("{question} \\boxed{}", "1+1 \\boxed{}"),
        ("{question} as \\boxed{answer}", "1+1 as \\boxed{answer}"),
        ("{question} as \\boxed{question}", "1+1 as \\boxed{1+1}"),
        ("\\frac{a}{b} \\sqrt[n]{x} x_{n}^{k} {question}", "\\frac{a}{b} \\sqrt[n]{x} x_{n}^{k} 1+1"),
        ("\\begin{aligned} {question} \\end{aligned}", "\\begin{aligned} 1+1 \\end{aligned}"),
        ('{question} as {"answer": 5} {1} { x } {a b} {a+b}', '1+1 as {"answer": 5} {1} { x } {a b} {a+b}'),
        ("{question} as {{answer}}", "1+1 as {answer}"),
        ("{{question}} is {question}", "{question} is 1+1"),
        ("{{1}} {{}} {question}", "{{1}} {{}} 1+1"),
    ],
)
def test_filled_in(template, filled):
    assert Template(template, KNOWN).fill({"question": "1+1", "hint": "{question}"}) == filled


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{problem}", r"unknown placeholder \{problem\}.*literal braces are doubled: \{\{problem\}\}"),
        ("{question} {problem}", r"unknown placeholder \{problem\}"),
        ("{question}{problem}", r"unknown placeholder \{problem\}"),
        ("{question}\n{problem}", r"unknown placeholder \{problem\}"),
        ("{question}\\n{problem}", r"unknown placeholder \{problem\}"),  # a line's end in a TOML literal string
        ("{Question}", "did you mean 'question'"),
        ("{{question}}", r"without any of \{hint\}, \{question\}"),
        ("", "every prompt would be the same"),
    ],
)
def test_refused(template, message):
    with pytest.raises(ConfigError, match=message):
        Template(template, KNOWN)
