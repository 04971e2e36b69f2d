"""TOML as it is written, and where a key stands in it."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astraflow.runfile.toml import dumps, line_of

plain = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), plain, max_size=4))
def test_written_toml_reads_back_equal(tree: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(tree)) == tree


def test_lines_are_found() -> None:
    text = '[a]\nx = 1\n\n[a.b]  # note\ny.z = 2\ns = """\nq = 1\n"""\nt = { u = 3 }\n'
    assert [line_of(text, path.split(".")) for path in ("a", "a.x", "a.b", "a.b.y.z", "a.b.t.u")] == [1, 2, 4, 5, 9]
    assert line_of(text, ["a", "b", "q"]) == 4  # not set: the table it would stand in
    assert line_of(text, ["c"]) is None
