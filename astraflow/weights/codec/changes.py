"""New values for a model that is already in memory somewhere: whole tensors, or only the elements that changed.

Not here: differences between versions (`differences.py`) and whoever holds the model (engines).
Invariant: changes hold *new values*, so applying them twice, or on top of a part of them, gives the same model. What
`Behind` hands out covers every element in which a copy can differ from the shadow, also after attempts that failed.
Axes: N elements of one tensor.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.weights.codec.differences import SparseUpdate, as_integers, find_changes
from astraflow.weights.codec.host_copy import HostCopy
from astraflow.weights.codec.tensors import HostTensor

# Above it copying the whole tensor takes no longer than going through the changed elements: measured 2 to 4 % for BF16,
# 4 to 5 % for F32 (docs/decisions/0001-weight-delta-codec.md).
_MAX_SPARSE_SHARE = 1 / 25


@dataclass(frozen=True)
class ChangedElements:
    """New values of some elements of one tensor."""

    dtype: str  # safetensors name
    shape: tuple[int, ...]
    positions: NDArray[np.int64]  # [N], flat, C order, distinct
    values: NDArray[Any]  # unsigned[N] of the dtype's width: the bits


Change = HostTensor | ChangedElements


class Behind:
    """In what a copy of the model may differ from a shadow: nothing, elements, or everything of a tensor."""

    def __init__(self) -> None:
        self._positions: dict[str, list[NDArray[np.int64]]] = {}
        self._whole: set[str] = set()

    def add(self, updates: Iterable[SparseUpdate]) -> None:
        """The shadow has moved by these."""
        for update in updates:
            for name, tensor in update.tensors.items():
                self._positions.setdefault(name, []).append(tensor.positions)

    def add_whole(self, names: Iterable[str]) -> None:
        """The shadow has other bytes for these tensors, wherever."""
        self._whole.update(names)

    def add_difference(self, old: HostCopy, new: HostCopy) -> None:
        """The shadow is another one now. Blocking."""
        for name, tensor in new.tensors.items():
            before = old.tensors.get(name)
            if before is None or (before.dtype, before.shape) != (tensor.dtype, tensor.shape):
                self._whole.add(name)
            elif old.digests[name] != new.digests[name]:
                self._positions.setdefault(name, []).append(find_changes(before, tensor)[0])

    def clear(self) -> None:
        """The copy is as the shadow."""
        self._positions.clear()
        self._whole.clear()

    def changes(self, shadow: HostCopy, takes_elements: Callable[[str], bool] = lambda name: True) -> dict[str, Change]:
        """What makes the copy equal to `shadow`; whole tensors are views of it. Blocking.

        Args: takes_elements: whether changed elements of a tensor will do.
        """
        whole = self._whole | {name for name in self._positions if not takes_elements(name)}
        views: dict[str, Change] = {name: shadow.tensors[name] for name in whole}
        sparse = {
            name: _elements(shadow.tensors[name], found) for name, found in self._positions.items() if name not in whole
        }
        return views | sparse


def _elements(tensor: HostTensor, found: list[NDArray[np.int64]]) -> Change:
    positions = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
    integers = as_integers(tensor)
    if len(positions) > _MAX_SPARSE_SHARE * len(integers):
        return tensor
    return ChangedElements(tensor.dtype, tensor.shape, positions, integers[positions])


def changed_elements(changes: Mapping[str, Change]) -> int:
    """How many elements are written."""
    return sum(
        len(as_integers(change)) if isinstance(change, HostTensor) else len(change.positions)
        for change in changes.values()
    )
