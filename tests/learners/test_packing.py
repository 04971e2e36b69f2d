"""Whatever the plan, each sampled token is predicted once and from its own context."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.learners.packing import PADDING, Costs, MicroBatch, PackItem, plan_micro_batches, shared_prefix

PLAIN = Costs()


def items_of(*sequences: tuple[str, list[int], list[int]]) -> list[PackItem]:
    """Items from (group, prompt, completion)."""
    items, first = [], 0
    for group, prompt, completion in sequences:
        items.append(
            PackItem(
                group=group,
                tokens_T=np.array(prompt + completion, np.int32),
                sampled_T=np.array([False] * len(prompt) + [True] * len(completion), np.bool_),
                first_target=first,
            )
        )
        first += len(completion)
    return items


def seen_by(micro_batch: MicroBatch, source: int) -> list[int]:
    """The tokens that the hidden state at flat index `source` depends on, in order of their positions."""
    b, at = divmod(source, micro_batch.tokens_BL.shape[1])
    visible = np.arange(at + 1)
    if micro_batch.segments_BL is not None:
        segments_L = micro_batch.segments_BL[b]
        visible = visible[(segments_L[: at + 1] == 0) | (segments_L[: at + 1] == segments_L[at])]
    assert micro_batch.positions_BL[b, visible].tolist() == list(range(len(visible)))
    return micro_batch.tokens_BL[b, visible].tolist()


def predictions(plan: list[MicroBatch]) -> dict[int, tuple[list[int], int]]:
    """Per sampled token of the batch: its context and itself. Fails if one is predicted twice."""
    found: dict[int, tuple[list[int], int]] = {}
    for micro_batch in plan:
        for source, target, index in zip(
            micro_batch.sources_N.tolist(), micro_batch.targets_N.tolist(), micro_batch.order_N.tolist(), strict=True
        ):
            assert index not in found
            found[index] = (seen_by(micro_batch, source), target)
    return found


def expected(items: list[PackItem]) -> dict[int, tuple[list[int], int]]:
    return {
        item.first_target + n: (item.tokens_T[:t].tolist(), int(item.tokens_T[t]))
        for item in items
        for n, t in enumerate(np.flatnonzero(item.sampled_T).tolist())
    }


def computed(plan: list[MicroBatch]) -> int:
    return sum(micro_batch.tokens_BL.size for micro_batch in plan)


def test_group_becomes_one_row_with_its_prompt_once() -> None:
    items = items_of(("a", [1, 2, 3], [4, 5]), ("a", [1, 2, 3], [6]))
    (micro_batch,) = plan_micro_batches(items, budget_tokens=64, costs=PLAIN, share_prefixes=True)
    assert micro_batch.tokens_BL.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert micro_batch.positions_BL.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert micro_batch.segments_BL is not None
    assert micro_batch.segments_BL.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert micro_batch.sources_N.tolist() == [2, 3, 2]  # both first tokens are predicted at the end of the prompt
    assert micro_batch.targets_N.tolist() == [4, 5, 6]
    assert micro_batch.order_N.tolist() == [0, 1, 2]


def test_demo_shape_computes_under_two_fifths_of_the_tokens() -> None:
    rng = np.random.default_rng(0)
    items = items_of(
        *((str(g), [g] * 45, rng.integers(9, 99, 14).tolist()) for g in range(8) for _ in range(8)),
    )
    shared = plan_micro_batches(items, budget_tokens=4096, costs=PLAIN, share_prefixes=True)
    plain = plan_micro_batches(items, budget_tokens=4096, costs=PLAIN, share_prefixes=False)
    assert (computed(shared), computed(plain)) == (8 * (45 + 8 * 14), 64 * (45 + 14))  # 1,256 against 3,776


def test_prefix_ends_before_the_first_sampled_token_even_if_completions_agree() -> None:
    assert shared_prefix(items_of(("a", [1, 2], [5, 5]), ("a", [1, 2], [5, 6]))) == 2
    assert shared_prefix(items_of(("a", [1, 2, 9], [5]), ("a", [1, 2], [9, 5]))) == 2
    assert shared_prefix(items_of(("a", [1, 2], [5]), ("a", [1, 3], [5]))) == 1
    assert shared_prefix(items_of(("a", [1], [5]), ("a", [3], [5]))) == 0


def test_groups_are_never_mixed_in_a_row() -> None:
    items = items_of(("a", [1, 2], [5]), ("b", [1, 2], [6]))
    (micro_batch,) = plan_micro_batches(items, budget_tokens=64, costs=PLAIN, share_prefixes=True)
    assert micro_batch.segments_BL is None
    assert micro_batch.tokens_BL.shape == (2, 3)


def test_dear_attention_makes_shared_rows_shorter_or_plain() -> None:
    items = items_of(*(("a", list(range(1, 9)), [20 + k] * 64) for k in range(4)))
    for attention, rows in ((0.0, 1), (1.0, 4)):
        plan = plan_micro_batches(
            items, budget_tokens=1024, costs=Costs(attention=attention, micro_batch=0.0), share_prefixes=True
        )
        assert sum(len(micro_batch.tokens_BL) for micro_batch in plan) == rows


def test_short_rows_are_not_padded_to_a_long_one_when_a_pass_is_cheap() -> None:
    items = items_of(("a", [1], [2] * 199), *((f"g{i}", [1], [3] * 9) for i in range(8)))
    cheap = plan_micro_batches(items, budget_tokens=4096, costs=Costs(micro_batch=1.0), share_prefixes=False)
    dear = plan_micro_batches(items, budget_tokens=4096, costs=Costs(micro_batch=9999.0), share_prefixes=False)
    assert [micro_batch.tokens_BL.shape for micro_batch in cheap] == [(1, 200), (8, 10)]
    assert [micro_batch.tokens_BL.shape for micro_batch in dear] == [(9, 200)]


def test_row_beyond_the_budget_goes_alone() -> None:
    items = items_of(("a", [1], [2] * 99), ("b", [1], [2] * 9))
    plan = plan_micro_batches(items, budget_tokens=16, costs=PLAIN, share_prefixes=False)
    assert [micro_batch.tokens_BL.shape for micro_batch in plan] == [(1, 100), (1, 10)]


def test_group_beyond_the_budget_is_shared_in_several_rows() -> None:
    items = items_of(*(("a", [7] * 30, [k] * 5) for k in range(8)))
    plan = plan_micro_batches(items, budget_tokens=40, costs=PLAIN, share_prefixes=True)
    assert [micro_batch.tokens_BL.shape for micro_batch in plan] == [(1, 40)] * 4


def test_sequences_without_sampled_tokens_are_left_out() -> None:
    items = items_of(("a", [1, 2], []), ("a", [1, 2], [3]))
    assert predictions(plan_micro_batches(items, budget_tokens=64, costs=PLAIN, share_prefixes=True)) == {
        0: ([1, 2], 3)
    }
    assert plan_micro_batches(items[:1], budget_tokens=64, costs=PLAIN, share_prefixes=True) == []


turns = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=3
)  # (context, completion) lengths
members = st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 2), min_size=1, max_size=6), turns)


@given(
    batch=st.lists(members, max_size=12),
    budget=st.integers(16, 80),
    share=st.booleans(),
    attention=st.sampled_from([0.0, 0.01, 0.3]),
    per_pass=st.sampled_from([0.0, 32.0]),
)
def test_each_sampled_token_is_predicted_once_from_its_own_context(
    batch: list, budget: int, share: bool, attention: float, per_pass: float
) -> None:
    rng = np.random.default_rng(len(batch))
    items, first = [], 0
    for group, prompt, lengths in batch:
        mask = [False] * len(prompt)
        for context, completion in lengths:
            mask += [False] * context + [True] * completion
        tokens = prompt + rng.integers(1, 3, len(mask) - len(prompt)).tolist()
        items.append(
            PackItem(
                group=group, tokens_T=np.array(tokens, np.int32), sampled_T=np.array(mask, np.bool_), first_target=first
            )
        )
        first += sum(mask)
    plan = plan_micro_batches(
        items, budget_tokens=budget, costs=Costs(attention=attention, micro_batch=per_pass), share_prefixes=share
    )
    assert predictions(plan) == expected(items)
    for micro_batch in plan:
        rows, length = micro_batch.tokens_BL.shape
        assert rows * length <= budget or rows == 1
        if micro_batch.segments_BL is not None:
            assert (micro_batch.segments_BL[:, 0] == 0).all()
            assert ((micro_batch.segments_BL != PADDING).sum(axis=1)).max() == length


@pytest.mark.parametrize("share", [True, False])
def test_plan_depends_on_its_arguments_only(share: bool) -> None:
    items = items_of(*((f"g{i % 3}", [i % 3] * 4, [i] * (1 + i % 5)) for i in range(20)))
    first, second = (
        plan_micro_batches(items, budget_tokens=48, costs=Costs(attention=0.01), share_prefixes=share) for _ in range(2)
    )
    assert [micro_batch.tokens_BL.tolist() for micro_batch in first] == [
        micro_batch.tokens_BL.tolist() for micro_batch in second
    ]
