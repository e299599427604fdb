"""A radix tree over blocks of tokens: which stored prefixes there are, and which of their blocks they share.

    root ── [32 tokens] ── [32 tokens] ─┬─ [32 tokens]          a document, and what was asked about it
                                        └─ [32 tokens] ── ...

A node is one block behind all blocks above it, so its KV is good for every text that begins with these tokens, and is
stored once however many texts do. Matching goes on inside the last block, token by token.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime.core import BLOCK_TOKENS

Block = tuple[int, ...]


class Tier(enum.IntEnum):
    """Where the KV of a block is."""

    MEMORY = 0
    LOADING = 1
    """On its way from disk; its bytes in memory are taken."""
    DISK = 2
    """On disk only; also a block that is in no tier any more, or not yet."""


@dataclass(eq=False, slots=True)
class Node:
    """One stored block.

    Attributes:
        block: Its tokens.
        depth: Blocks above it.
        parent: The block above; None for the root and for a block that was dropped.
        children: Blocks behind it, by their tokens.
        payload: The engine's KV state; never mutated. None in replay and on disk.
        tier: Where the KV is.
        on_disk: Whether there is a copy on disk.
        digest: ``name()``, once it was asked for.
        holds: How many users need it and all blocks above it to stay where they are.
        memory_children: Blocks behind it that are in memory or on their way there.
        hits: How often it was reused.
        last_used_s: Session time of the last use.
    """

    block: Block
    depth: int
    parent: Node | None
    children: dict[Block, Node] = field(default_factory=dict)
    payload: Any = None
    tier: Tier = Tier.DISK
    on_disk: bool = False
    holds: int = 0
    memory_children: int = 0
    hits: int = 0
    last_used_s: float = 0.0
    digest: str = ""

    def name(self) -> str:
        """A name that only this block behind these blocks has: SHA-256 (hex) over the tokens from the start."""
        unnamed: list[tuple[Node, Node]] = []
        node: Node = self
        while not node.digest and node.parent is not None:
            unnamed.append((node, node.parent))
            node = node.parent
        for node, above in reversed(unnamed):
            tokens = np.asarray(node.block, dtype="<i4").tobytes()
            node.digest = hashlib.sha256(above.digest.encode() + tokens).hexdigest()
        return self.digest

    def up(self) -> Iterator[Node]:
        """This block and all above it, without the root."""
        node: Node = self
        while node.parent is not None:
            yield node
            node = node.parent


class KVTree:
    """The nodes. Knows nothing of bytes and tiers beyond what it is told."""

    def __init__(self) -> None:
        self.root = Node((), -1, None)

    def match(self, tokens: tuple[int, ...]) -> tuple[tuple[Node, ...], int]:
        """The blocks that ``tokens`` begins with, and how many tokens that is.

        Of the last block fewer tokens may be meant than it has.
        """
        path: list[Node] = []
        node, at = self.root, 0
        while True:
            block = tokens[at : at + BLOCK_TOKENS]
            child = node.children.get(block)
            if child is None:
                break
            path.append(child)
            node, at = child, at + BLOCK_TOKENS
        best, shared = None, 0
        for block_of, child in node.children.items():
            common = _common(block_of, block)
            if common > shared:
                best, shared = child, common
        if best is not None:
            path.append(best)
        return tuple(path), at + shared

    def add(self, parent: Node, block: Block) -> Node:
        """A new block behind ``parent``."""
        node = Node(block, parent.depth + 1, parent)
        parent.children[block] = node
        return node

    def remove(self, node: Node) -> None:
        """Take a block and all behind it out of the tree."""
        assert node.parent is not None, "the root stays"
        del node.parent.children[node.block]
        gone = [node]
        for each in gone:
            gone.extend(each.children.values())
            each.name()  # while the blocks above it are known
        for each in gone:
            each.parent = None
            each.children = {}

    def nodes(self) -> Iterator[Node]:
        """All blocks, parents first."""
        waiting = list(self.root.children.values())
        for node in waiting:
            yield node
            waiting.extend(node.children.values())


def _common(a: Block, b: Block) -> int:
    """Length of the longest common prefix."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
