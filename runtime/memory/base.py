"""The contracts of memory: jobs that bring and write things while decoding goes on, and where KV lies on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from runtime.core import BLOCK_TOKENS
from runtime.memory.kv_tree import Node


@dataclass(frozen=True, eq=False, slots=True)
class ReadKV:
    """Bring stored blocks, the upper first, from disk into memory. The payload lists theirs, up to a bad one."""

    nodes: tuple[Node, ...]

    @property
    def tokens(self) -> int:
        """Tokens they cover."""
        return len(self.nodes) * BLOCK_TOKENS


@dataclass(frozen=True, eq=False, slots=True)
class WriteKV:
    """Write blocks, the upper first, to disk. The payload is None; ``error`` says that not all were written."""

    nodes: tuple[Node, ...]

    @property
    def tokens(self) -> int:
        """Tokens they cover."""
        return len(self.nodes) * BLOCK_TOKENS


Job = int | ReadKV | WriteKV
"""What a loader does: load the draft of this index, or read or write KV."""


def urgency(job: Job) -> int:
    """Lower is sooner: a request waits for KV to be read, nobody for KV to be written."""
    return 0 if isinstance(job, ReadKV) else 2 if isinstance(job, WriteKV) else 1


class Loaded(NamedTuple):
    """A finished job. ``payload`` is what it brought; ``error`` says why there is none."""

    job: Job
    payload: Any
    seconds: float
    error: str | None = None


class Loader(Protocol):
    """Does jobs, one after another, while decoding goes on; of those that wait the most urgent first."""

    def start(self, job: Job) -> None:
        """Queue a job. Returns at once. A draft that is queued or running already is not queued again."""
        ...

    def poll(self) -> list[Loaded]:
        """Jobs that have finished since the last call, in order. Returns at once."""
        ...

    def wait(self, job: Job) -> None:
        """Stall until ``job`` has finished; ``poll`` then returns it."""
        ...

    def fraction(self, draft: int) -> float:
        """Estimated part of a running draft load that is done, 0 to 1."""
        ...

    def close(self) -> None:
        """Stop. A running job is finished or abandoned; nothing is left half-written."""
        ...


class StoredBlock(NamedTuple):
    """A block that was found on disk."""

    name: str
    parent_name: str
    block: tuple[int, ...]


class KVDisk(Protocol):
    """Where the KV of blocks lies on disk. ``read`` and ``write`` run in the loader's thread, the others do not."""

    def read(self, nodes: Sequence[Node]) -> list[Any]:
        """Payloads of the blocks, in order, up to the first that is missing, damaged or of another model."""
        ...

    def write(self, nodes: Sequence[Node]) -> None:
        """Write the blocks' payloads, each aside first, then renamed.

        Raises:
            OSError: If the disk is full or cannot be written.
        """
        ...

    def delete(self, node: Node) -> None:
        """Delete a block's file; nothing happens if there is none."""
        ...

    def scan(self) -> list[StoredBlock]:
        """What earlier runs left, parents before children; unreadable files are deleted."""
        ...
