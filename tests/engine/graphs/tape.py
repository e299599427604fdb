"""A recorder for CPU that keeps the rules of CUDA graphs: operations on fixed tensors, and no Python between them.

What a recording runs is written down operator by operator. A replay repeats the operators with the very tensors and
numbers of the recording and puts every result where it lay then. So a forward that keeps a number of its own moment, or
reads one back from a tensor, fails here as it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from runtime.engine.graphs.base import Replay
from runtime.engine.graphs.runner import GraphRunner
from runtime.engine.transformers_model import TransformersModel

READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item")
"""Operators that need a number of a tensor in Python: a stream that is recorded refuses them."""
TRACING = ("transformers.masking_utils.is_tracing", "transformers.modeling_utils.is_tracing")
"""Where transformers asks whether a stream is being recorded."""


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[tuple[Any, Any, dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func.overloadpacket.__name__ in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result


class Tape:
    """Implements ``Recorder``.

    Attributes:
        attempts: Recordings that were asked for.
        replays: Replays so far, of all recordings.
    """

    def __init__(self) -> None:
        self.failed = False
        self.attempts = self.replays = 0

    def record(self, compute: Callable[[], torch.Tensor]) -> Replay | None:
        self.attempts += 1
        listener = _Listener()
        try:
            with _as_if_recording(), listener:
                output = compute()
        except RuntimeError:
            self.failed = True
            return None
        output.fill_(float("nan"))  # recording runs nothing, on CUDA

        def replay() -> torch.Tensor:
            self.replays += 1
            for func, args, kwargs, before in listener.steps:
                _repeat(func, args, kwargs, before)
            return output

        return replay


def _repeat(func: Any, args: Any, kwargs: dict[str, Any], before: Any) -> None:
    known = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    again = func(*args, **kwargs)
    for new, old in zip(tree_leaves(again), tree_leaves(before), strict=True):
        if isinstance(old, torch.Tensor) and _storage(old) not in known:  # else a view, or written in place
            old.copy_(new)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _as_if_recording() -> Iterator[None]:
    with mock.patch(TRACING[0], return_value=True), mock.patch(TRACING[1], return_value=True):
        yield


def recorded_model(network: PreTrainedModel, tape: Tape) -> TransformersModel:
    """A model as on CUDA: layers of torch alone, narrow forwards recorded and replayed."""
    model = TransformersModel(network, pack=False, native=False, graphs=True)
    assert isinstance(model._runner, GraphRunner)
    model._runner._recorder = tape
    model._runner._graphs.clear()
    return model
