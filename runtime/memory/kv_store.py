"""Stored KV prefixes in two tiers: blocks in memory, inside the one budget, and blocks on disk beyond it.

    memory   the upper part of every stored text:  a block in memory has all blocks above it in memory
    disk     copies of blocks, written behind;     a block on disk has all blocks above it on disk

So what is given up first is always the end of a text, and a prefix that many texts share (a system prompt, a document
placed first) stays longest. A block that is given up in memory lives on if it has a copy on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from runtime.core import BLOCK_TOKENS
from runtime.memory.base import KVDisk
from runtime.memory.kv_tree import KVTree, Node, Tier

Hold = tuple[Node, ...]
"""Blocks that a user needs where they are."""

Value = Callable[[Node], float]
"""Worth of a block per byte."""


class Match(NamedTuple):
    """The longest stored prefix of a prompt.

    Attributes:
        path: Its blocks, from the start; of the last one maybe not all tokens are meant.
        tokens: Tokens usable.
        disk_tokens: Of these, how many have to be read from disk first.
    """

    path: tuple[Node, ...] = ()
    tokens: int = 0
    disk_tokens: int = 0

    def up_to(self, blocks: int) -> Match:
        """The first ``blocks`` blocks of it."""
        if blocks >= len(self.path):
            return self
        tokens = min(self.tokens, blocks * BLOCK_TOKENS)
        return Match(self.path[:blocks], tokens, max(0, tokens - (self.tokens - self.disk_tokens)))


class Missing(NamedTuple):
    """The part of a text that would have to be copied to keep all of it: tokens ``start`` to ``end``."""

    above: Node  # the last block before it, or the root
    start: int
    end: int


class KVStore:
    """The blocks and where they are. It chooses victims by a value it is given; the manager says when.

    Args:
        bytes_per_token: Size of the target's KV for one token.
        disk: Where copies go; None = nowhere (in replay blocks on disk are only counted).
    """

    def __init__(self, bytes_per_token: int, disk: KVDisk | None = None) -> None:
        self.block_bytes = bytes_per_token * BLOCK_TOKENS
        self.disk = disk
        self.tree = KVTree()
        self._in_memory = self._on_disk = 0  # blocks
        self._leaves: dict[Node, None] = {}  # blocks in memory with no block behind them in memory
        self._held: dict[Node, None] = {}

    # -- bytes ---------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Memory that all blocks in memory, and on their way there, take."""
        return self._in_memory * self.block_bytes

    @property
    def held_bytes(self) -> int:
        """Of these, what may not be given up now."""
        return sum(node.tier is not Tier.DISK for node in self._held) * self.block_bytes

    @property
    def disk_bytes(self) -> int:
        """Size of all copies on disk."""
        return self._on_disk * self.block_bytes

    @property
    def evictable(self) -> bool:
        """Whether there is a block that may be given up."""
        return any(not leaf.holds for leaf in self._leaves)

    # -- reading -------------------------------------------------------------------------------------------------

    def match(self, prompt_ids: tuple[int, ...]) -> Match:
        """The longest stored prefix of a prompt; at least one prompt token is left to forward."""
        path, tokens = self.tree.match(prompt_ids[:-1])
        there = sum(node.tier is not Tier.DISK for node in path)
        return Match(path, tokens, max(0, tokens - there * BLOCK_TOKENS))

    def missing(self, tokens: tuple[int, ...]) -> Missing:
        """What of a text is neither in memory nor on its way there, in whole blocks.

        What is on disk only counts as missing: keeping it again costs a copy and no read.
        """
        node, end = self.tree.root, 0
        while (
            child := node.children.get(tokens[end : end + BLOCK_TOKENS])
        ) is not None and child.tier is not Tier.DISK:
            node, end = child, end + BLOCK_TOKENS
        return Missing(node, end, max(end, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS))

    # -- changing ------------------------------------------------------------------------------------------------

    def insert(self, tokens: tuple[int, ...], payloads: Sequence[Any], now_s: float) -> tuple[Node, ...]:
        """Keep blocks: the payloads are those of the blocks that ``missing`` names, in order. Returns these blocks."""
        node, start, end = self.missing(tokens)
        for above in node.up():
            above.last_used_s = now_s
        added = []
        for at, payload in zip(range(start, end, BLOCK_TOKENS), payloads, strict=True):
            block = tokens[at : at + BLOCK_TOKENS]
            node = node.children.get(block) or self.tree.add(node, block)
            node.last_used_s, node.payload = now_s, payload
            self._enter(node, Tier.MEMORY)
            added.append(node)
        return tuple(added)

    def hold(self, node: Node) -> Hold:
        """This block and all above it stay where they are until the hold is released."""
        hold = tuple(node.up())
        for each in hold:
            each.holds += 1
            self._held[each] = None
        return hold

    def release(self, hold: Hold) -> None:
        """Undo one ``hold``."""
        for each in hold:
            each.holds -= 1
            if not each.holds:
                self._held.pop(each, None)

    def drop_least(self, value: Value) -> bool:
        """Give up the block in memory that is worth least; False if none may go."""
        candidates = [leaf for leaf in self._leaves if not leaf.holds]
        if not candidates:
            return False
        node = min(candidates, key=value)
        self._leave(node)
        if not node.on_disk:
            self._remove(node)
        return True

    def begin_read(self, nodes: Iterable[Node]) -> None:
        """Blocks on disk are on their way into memory; the room is there."""
        for node in nodes:
            self._enter(node, Tier.LOADING)

    def end_read(self, nodes: Sequence[Node], payloads: Sequence[Any]) -> None:
        """Blocks have arrived; those without a payload turned out bad and are dropped, with all behind them."""
        for index, node in enumerate(nodes):
            if node.parent is None:  # dropped meanwhile, with a block above it
                continue
            if index < len(payloads):
                node.payload, node.tier = payloads[index], Tier.MEMORY
            else:
                self._remove(node)

    def abandon_read(self, nodes: Sequence[Node]) -> None:
        """Nothing has arrived; the blocks stay on disk, but for those with new blocks behind them in memory."""
        for node in reversed(nodes):
            if node.parent is None:
                continue
            self._leave(node) if not node.memory_children else self._remove(node)

    def wrote(self, nodes: Iterable[Node]) -> None:
        """Blocks have a copy on disk now."""
        for node in nodes:
            parent = node.parent
            if parent is None or not (parent.on_disk or parent.parent is None):  # dropped, or the block above was not
                self._delete_unless_known(node)
            elif not node.on_disk:
                node.on_disk = True
                self._on_disk += 1

    def did_not_write(self, nodes: Iterable[Node]) -> None:
        """Not all of these blocks could be written: those that were are deleted."""
        for node in nodes:
            if not node.on_disk:
                self._delete_unless_known(node)

    def _delete_unless_known(self, node: Node) -> None:
        """Delete a block's file, unless another block of the same tokens has taken its place."""
        known = any(other is not node and other.name() == node.name() for other in self.tree.nodes())
        if self.disk is not None and not known:
            self.disk.delete(node)

    def drop_least_on_disk(self, value: Value, keep: Iterable[Node] = ()) -> bool:
        """Delete the copy on disk that is worth least; False if none may go."""
        kept = set(keep)
        candidates = [
            node
            for node in self.tree.nodes()
            if node.on_disk
            and not node.holds
            and node not in kept
            and not any(c.on_disk for c in node.children.values())
        ]
        if not candidates:
            return False
        node = min(candidates, key=value)
        self._forget_copy(node)
        if node.tier is Tier.DISK:
            self._remove(node)
        return True

    def adopt(self, now_s: float) -> None:
        """Take in what earlier runs left on disk."""
        by_name: dict[str, Node] = {"": self.tree.root}
        for stored in self.disk.scan() if self.disk is not None else ():
            parent = by_name.get(stored.parent_name)
            if parent is None or len(stored.block) != BLOCK_TOKENS or stored.block in parent.children:
                continue
            node = self.tree.add(parent, stored.block)
            if node.name() != stored.name:  # a renamed file
                self.tree.remove(node)
                continue
            node.on_disk, node.last_used_s = True, now_s
            self._on_disk += 1
            by_name[stored.name] = node

    # -- parts ---------------------------------------------------------------------------------------------------

    def _enter(self, node: Node, tier: Tier) -> None:
        """A block that was not in memory is now, or will be."""
        node.tier = tier
        self._in_memory += 1
        parent = node.parent
        assert parent is not None
        parent.memory_children += 1
        self._leaves.pop(parent, None)
        if not node.memory_children:
            self._leaves[node] = None

    def _leave(self, node: Node) -> None:
        """A block without blocks behind it in memory leaves memory."""
        node.payload, node.tier = None, Tier.DISK
        self._in_memory -= 1
        self._leaves.pop(node, None)
        parent = node.parent
        assert parent is not None
        parent.memory_children -= 1
        if not parent.memory_children and parent.parent is not None and parent.tier is not Tier.DISK:
            self._leaves[parent] = None

    def _remove(self, node: Node) -> None:
        """Take a block and all behind it out, from memory and from disk."""
        gone = [node]
        for each in gone:
            gone.extend(each.children.values())
        for each in reversed(gone):
            if each.tier is not Tier.DISK:
                self._leave(each)
            if each.on_disk:
                self._forget_copy(each)
            self._held.pop(each, None)
        self.tree.remove(node)

    def _forget_copy(self, node: Node) -> None:
        node.on_disk = False
        self._on_disk -= 1
        if self.disk is not None:
            self.disk.delete(node)
