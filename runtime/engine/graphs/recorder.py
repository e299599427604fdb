"""Recording a computation as a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch

from runtime.engine.graphs.base import Replay
from runtime.engine.graphs.streams import recording_stream

LOGGER = logging.getLogger(__name__)

WARM_UPS = 1
"""Runs on the recording stream before the recording, in which libraries set up what they keep for a stream."""


class CudaRecorder:
    """Implements ``Recorder``. All its recordings share one pool of memory, since only one of them runs at a time.

    A failed recording is not tried again: before torch 2.12 the allocator may take it to be still going on (pytorch
    #180395).

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = recording_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self.failed = False

    def record(self, compute: Callable[[], torch.Tensor]) -> Replay | None:
        decoding = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(decoding)
        try:
            graph, output = self._captured(compute)
        except RuntimeError as error:  # an operation that a stream cannot record, or no memory for it
            self.failed = True
            _say(str(error).splitlines()[0] if str(error) else type(error).__name__)
            return None
        finally:
            decoding.wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    def _captured(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        # The outer context brings the decoding stream back even where the inner one fails and leaves its own behind.
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                compute()
            # Of this thread only: in the usual mode the recording fails if the loader's thread allocates meanwhile.
            # Source: vllm-project/vllm #48053.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                output = compute()
        return graph, output


@cache
def _say(reason: str) -> None:
    """Warn, once: every load of a draft would say it again."""
    LOGGER.warning("forwards are not recorded as CUDA graphs, every kernel is started anew: %s", reason)
