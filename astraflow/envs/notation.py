r"""How the same answer is written: full-width digits, 1e3, 1 1/2, thousands, \\text{…}, letters of choices, words.

What mathematics can't tell apart or wouldn't read, before math-verify does. Pure, and never evaluates: fixed patterns
over bounded texts.
"""

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

_PLAIN = (
    {0xFF01 + i: 0x21 + i for i in range(94)}
    | dict.fromkeys((0x3000, 0xA0, 0x202F, 0x2009), 0x20)
    | {0x2212: 0x2D, 0x3002: 0x2E}
)
LETTERS = r"\dA-Za-z_À-ӿ"  # and digits, of scripts with spaces between words: they make a name with what follows
_UNSPACED = re.compile(
    r"(?<=[぀-鿿가-힣])(?=[-+\d\\$])|(?<=\d)(?=[぀-鿿가-힣])"
)  # where a script without spaces meets a number
_VULGAR = re.compile(r"(\d?)([¼-¾⅐-⅞])")
_RAISED = re.compile(r"[⁻⁰¹²³⁴-⁹]+")
_ROOT = re.compile(r"√\s?(?:(\d+|[A-Za-z])|\(([^()]*)\)|\{([^{}]*)\})")
_MONEY = re.compile(r"[€£¥](?=\s?\d)|(?<=\d)\s?[€£¥]|(?<=\d) (?:dollars?|euros?|cents?)\b")
_PERIOD = re.compile(r"(?<![\d.])(\d{1,9})\.(\d{0,9})\\overline\{(\d{1,9})\}")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,!;:]|\\ )(?=\d{3}(?!\d))")
_SCIENTIFIC = re.compile(r"(?<![" + LETTERS + r".\\])(\d{1,20}(?:\.\d{1,20})?)[eE]([-+]?\d{1,2})(?![\w.]\w)(?!\w)")
_TIMES_TEN = re.compile(r"(?<![" + LETTERS + r".\\])(\d{1,20}(?:\.\d{1,20})?)\s?[×x]\s?10\^\{?(-?\d{1,2})\}?(?!\d)")
_MIXED = re.compile(r"(?<![" + LETTERS + r"./^_\\])(\d{1,9})[ ]+(\d{1,9})[ ]?/[ ]?(\d{1,9})(?![\w/^]|\.\d)")
_MIXED_FRAC = re.compile(
    r"(?<![" + LETTERS + r"./^_\\])(\d{1,9})(?:[ ]|\\[ ,;!])*\\[dt]?frac[ ]?(?:\{(\d{1,9})\}\{(\d{1,9})\}|(\d)(\d))"
)
_LARGEST_EXPONENT = 30  # written out in digits
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathsf|mbox|emph)\s*\{([^{}]*)\}")
_MATH_MARKS = re.compile(r"\$|\\[()\[\]]|\\displaystyle|\*\*|`|\\left\b|\\right\b|\\[ ,;!]|~")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{|-?\d|\\[A-Za-z])")
_BRACE = re.compile(r"(?<!\\)(?:\\\\)*[{}]")
_LETTER = re.compile(r"([A-J])[.:)]?|\(([A-Ja-j])\)[.:]?|\[([A-J])\]")
_LABELLED = re.compile(r"(?:\(([A-J])\)\s*|([A-J])[.):]\s+)(\S.*)", re.DOTALL)
_SAID = [  # the former counts before the latter: "the answer is C; option A is wrong"
    re.compile(
        rf"(?:{word})\b(?:\s+(?:is|would be|should be|must be))?\s*[:=]?\s*(?:option\s+|choice\s+)?"
        r"[\s*_$\\(\[{]{0,6}(?:text\w*|mathrm|mathbf)?[\s({]{0,4}([A-J])(?![\w'’+^=/-])",
        re.IGNORECASE,
    )
    for word in ("answer", "choice|option")
]
_IN_BRACKETS = re.compile(r"\(([A-J])\)")
_AT_THE_END = re.compile(r"(?:^|[\s*_(\[:])([A-J])[\s.*_)\]!]*$")
_LINE_BEGINS = re.compile(r"[\s*_>#-]*\(?([A-J])[).:][\s*]")
_WORD = re.compile(r"[A-Za-zÀ-ɏ]{3,}|[Ѐ-\uffdc]")
_NOT_WORDS = re.compile(r"[\\=^_<>+*/{}|\d]")
_FUNCTIONS = re.compile(
    r"\b(?:(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt|det|lim|max|min|gcd|lcm|mod|infty)\b", re.IGNORECASE
)
_ANSWER_IS = re.compile(r".*\banswer\s*(?:is|:|=)\s*(.+)", re.IGNORECASE | re.DOTALL)


def plain(text: str) -> str:
    """Full-width characters, odd spaces and the minus sign as ASCII has them."""
    return text.translate(_PLAIN)


def expression(text: str) -> str:
    """1e3 as 1000, 1 1/2 as 3/2, 1{,}000 as 1000, wherever they stand, also between letters of Chinese."""
    text = _MONEY.sub("", _spelt_out(plain(text)))
    text = _THOUSANDS.sub("", _UNSPACED.sub(" ", text))
    text = _SCIENTIFIC.sub(_digits, text)
    text = _TIMES_TEN.sub(_digits, text)
    text = _MIXED.sub(lambda m: _improper(m[1], m[2], m[3], "{}/{}") or m[0], text)
    return _MIXED_FRAC.sub(lambda m: _improper(m[1], m[2] or m[4], m[3] or m[5], "\\frac{{{}}}{{{}}}") or m[0], text)


def _spelt_out(text: str) -> str:
    """½, x², √2, ∞ and 0.\\overline{3} in signs that every reader of mathematics knows."""
    text = _VULGAR.sub(lambda m: f"{m[1]} {unicodedata.normalize('NFKC', m[2])}".strip().replace("⁄", "/"), text)
    text = _RAISED.sub(lambda m: f"^{{{unicodedata.normalize('NFKC', m[0]).replace('−', '-')}}}", text)
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m[1] or m[2] or m[3]}}}", text)
    return _PERIOD.sub(_fraction, text.replace("∞", "\\infty "))


def _fraction(match: re.Match[str]) -> str:
    """Of 0.1\\overline{6}: sixteen less one, over ninety."""
    whole, fixed, period = match.groups()
    below = (10 ** len(period) - 1) * 10 ** len(fixed)
    above = int(whole + fixed + period) - int(whole + fixed)
    return f"\\frac{{{above}}}{{{below}}}"


def _digits(match: re.Match[str]) -> str:
    if abs(int(match[2])) > _LARGEST_EXPONENT:
        return match[0]
    try:
        return f"{Decimal(f'{match[1]}e{match[2]}'):f}"
    except InvalidOperation:
        return match[0]


def _improper(whole: str, above: str, below: str, form: str) -> str:
    """ "" unless it is a mixed number: 1 3/2 is none."""
    if int(below) == 0 or int(above) >= int(below):
        return ""
    return form.format(int(whole) * int(below) + int(above), int(below))


def unwrapped(text: str) -> str:
    """What stands in \\text{…}, dollars, bold: without these marks."""
    before = None
    while before != text:
        before, text = text, _TEXT.sub(r"\1", text)
    return " ".join(_MATH_MARKS.sub(" ", text).split())


def same_text(given: str, expected: str) -> bool:
    """Equal but for spaces, marks and a full stop, of words also for capitals; nothing equals an empty text."""
    left, right = (unwrapped(plain(text)).rstrip(" .") for text in (given, expected))
    return bool(left) and (left == right or (is_words(right) and left.casefold() == right.casefold()))


def last_box(text: str) -> str | None:
    """What the last \\boxed{…} holds; "" if it isn't closed, None if there is none."""
    boxes = [match.end() for match in _BOX.finditer(text)]
    if not boxes:
        return None
    inside = boxes[-1]
    if text[inside] != "{":  # \boxed5, and \boxed\frac12
        return re.split(r"[\s$;]", text[inside:], maxsplit=1)[0].rstrip(".,")
    end = closing(text, inside)
    return text[inside + 1 : end].strip() if end >= 0 else ""


def closing(text: str, start: int) -> int:
    """Where the brace at `start` is closed; -1 if it isn't."""
    depth = 0
    for position in _braces(text, start):
        depth += 1 if text[position] == "{" else -1
        if depth == 0:
            return position
    return -1


def _braces(text: str, start: int) -> Iterator[int]:
    """Positions of the braces that aren't written as \\{ and \\}."""
    yield from (match.end() - 1 for match in _BRACE.finditer(text, start))


def balanced(text: str) -> bool:
    """Whether every brace is closed."""
    depth = 0
    for position in _braces(text, 0):
        depth += 1 if text[position] == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def choice(text: str) -> str:
    """The letter, if the text is nothing but one of a multiple choice, A to J: C, (C), C., (c), \\text{C}; else ""."""
    match = _LETTER.fullmatch(unwrapped(plain(text)))
    return (match[match.lastindex or 0]).upper() if match else ""


def labelled(text: str) -> tuple[str, str]:
    """("C", "42") of \\textbf{(C) }42, C) 42 and C. 42; ("", "") of others."""
    match = _LABELLED.fullmatch(unwrapped(plain(text)))
    return (match[1] or match[2], match[3]) if match else ("", "")


def chosen_letter(text: str) -> str:
    """The letter that a reply ends on: in its last box, behind "the answer is", in brackets, or at the end; else ""."""
    boxed = last_box(text)
    if boxed is not None:
        return choice(boxed) or labelled(boxed)[0]
    for form in (*_SAID, _IN_BRACKETS):
        if said := [str(letter) for letter in form.findall(text) if letter.isupper()]:
            return said[-1]
    line = last_line(text)
    begins = _LINE_BEGINS.match(line + " ") or _AT_THE_END.search(line)
    return begins[1] if begins else ""


def is_words(text: str) -> bool:
    """Whether it is a word or more rather than mathematics: Paris, none of these, 北京; not 12 cm, xy, sin x."""
    text = unwrapped(plain(text))
    return bool(_WORD.search(text)) and not _NOT_WORDS.search(text) and not _FUNCTIONS.search(text)


def last_answer(text: str) -> str:
    """What the last box holds; without one, the last line that isn't empty."""
    boxed = last_box(text)
    return last_line(text) if boxed is None else boxed


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()


def said_answer(text: str) -> str:
    """Behind "the answer is" in an answer that is a sentence; else all of it."""
    match = _ANSWER_IS.fullmatch(text)
    return match[1] if match else text
