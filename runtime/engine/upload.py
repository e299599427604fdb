"""Bringing a draft's weights to a device while it computes something else.

On CUDA the copies run on a stream of their own, from pinned memory, so the stream that decodes never waits for them.
Whoever loads waits instead: a draft is delivered when all of it has arrived. On CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from runtime.engine.graphs.streams import upload_stream


class Upload:
    """The weights of one module on their way to a device.

    Args:
        device: Where to.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._stream = upload_stream(self._device) if self._device.type == "cuda" else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """This thread's work on the device goes beside what other threads decode."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def send(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor on the device, which may not be read before it is delivered."""
        if self._stream is None:
            return tensor.to(device=self._device, dtype=dtype)
        # The pinned copy may go out of scope: torch uses its memory again only when the device has read it.
        return tensor.to(dtype=dtype).pin_memory().to(self._device, non_blocking=True)

    def deliver(self, module: nn.Module) -> None:
        """Wait until all that was sent has arrived; the module that holds it may then be used by whoever decodes."""
        if self._stream is None:
            return
        # Blocking: the thread sleeps meanwhile, and the processor is the decoder's.
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        arrived.record(self._stream)
        arrived.synchronize()
        decoding = torch.cuda.default_stream(self._device)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.device.type == "cuda":
                tensor.record_stream(decoding)  # once given up, its memory is not written before decoding is through
