"""Trees of arrays and plain values, to JSON plus named arrays and back: a checkpoint's state, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
ARRAY, TENSOR, TUPLE, PAIRS = "$array", "$tensor", "$tuple", "$pairs"
"""Keys of what JSON cannot say itself: an array and a tensor by name, a tuple, a mapping whose keys are no names."""


def pack(tree: Any) -> tuple[Any, Arrays]:
    """Split a tree into what JSON holds and its arrays, copied, by their path in the tree.

    Args:
        tree: Mappings, lists and tuples of NumPy arrays, tensors, numbers, strings, booleans and None.

    Raises:
        TypeError: If there is anything else in it.
    """
    arrays: Arrays = {}
    return _pack(tree, "", arrays), arrays


def _pack(value: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(value, torch.Tensor):
        arrays[path] = value.detach().cpu().numpy().copy()
        return {TENSOR: path}
    if isinstance(value, np.ndarray):
        arrays[path] = np.array(value, order="C")
        return {ARRAY: path}
    if isinstance(value, Mapping):
        items = {key: _pack(item, f"{path}/{key}", arrays) for key, item in value.items()}
        plain = all(isinstance(key, str) and not key.startswith("$") for key in items)
        return items if plain else {PAIRS: [[key, item] for key, item in items.items()]}
    if isinstance(value, (list, tuple)):
        listed = [_pack(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]
        return listed if isinstance(value, list) else {TUPLE: listed}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{path}: expected arrays, tensors and plain values, got {type(value).__name__}")


def unpack(tree: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The tree again; named tuples come back as plain ones.

    Args:
        tree: First part of what ``pack`` gave.
        arrays: Second part.
    """
    if isinstance(tree, list):
        return [unpack(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {TENSOR}:
        return torch.from_numpy(arrays[tree[TENSOR]].copy())
    if tree.keys() == {ARRAY}:
        return arrays[tree[ARRAY]].copy()
    if tree.keys() == {TUPLE}:
        return tuple(unpack(item, arrays) for item in tree[TUPLE])
    if tree.keys() == {PAIRS}:
        return {key: unpack(item, arrays) for key, item in tree[PAIRS]}
    return {key: unpack(item, arrays) for key, item in tree.items()}
