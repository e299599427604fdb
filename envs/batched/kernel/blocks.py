"""Stored KV of one stream: ``runtime.memory.kv_store`` and ``kv_tree``, all blocks in memory and none on disk.

Nodes are slots of the stream's ``node`` rows; the last slot is the root. A node's children are linked in the order in
which they were added, as the tree's dictionaries are.
"""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream, World
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import Tables
from runtime.core import BLOCK_TOKENS


@compiled
def child(s: Stream, node: int, chain: int) -> int:
    """The slot of a chain behind a node; -1 if it is not stored."""
    slot: int = s.node[node, col.FIRST_CHILD]
    while slot >= 0 and s.node[slot, col.CHAIN] != chain:
        slot = s.node[slot, col.NEXT]
    return slot


@compiled
def descend(tables: Tables, s: Stream, tokens: int) -> tuple[int, int]:
    """The last of the whole blocks that the first ``tokens`` of the text begin with (or the root), and how many."""
    node, blocks = len(s.node) - 1, 0
    first = tables.text[s.whole[col.TEXT], col.CHAINS_AT]
    while (blocks + 1) * BLOCK_TOKENS <= tokens:
        slot = child(s, node, tables.chain[first + blocks])
        if slot < 0:
            break
        node, blocks = slot, blocks + 1
    return node, blocks


@compiled
def match(tables: Tables, s: Stream) -> None:
    """Note the longest stored prefix of the prompt, one token of it left out."""
    text = s.whole[col.TEXT]
    begin, most = tables.text[text, col.TOKENS_AT], tables.text[text, col.PROMPT] - 1
    node, blocks = descend(tables, s, most)
    at = blocks * BLOCK_TOKENS
    best, shared = node, 0
    slot = s.node[node, col.FIRST_CHILD]
    while slot >= 0:
        stored = tables.chain_at[s.node[slot, col.CHAIN]]
        common, limit = 0, min(BLOCK_TOKENS, most - at)
        while common < limit and tables.token[stored + common] == tables.token[begin + at + common]:
            common += 1
        if common > shared:
            best, shared = slot, common
        slot = s.node[slot, col.NEXT]
    found = at + shared
    s.whole[col.MATCH_TOKENS] = found
    s.whole[col.MATCH_NODE] = best if found > 0 else -1


@compiled
def hold(s: Stream, node: int, change: int) -> None:
    """Hold (1) or release (-1) a block and all above it."""
    while node != len(s.node) - 1:
        holds = s.node[node, col.HOLDS] + change
        s.node[node, col.HOLDS] = holds
        if holds == max(change, 0):  # it was not held before, or is not any more
            s.whole[col.HELD_BLOCKS] += change
        node = s.node[node, col.PARENT]


@compiled
def unheld_above(s: Stream, node: int) -> int:
    """Blocks from a node upwards that nobody holds."""
    count = 0
    while node != len(s.node) - 1:
        if s.node[node, col.HOLDS] == 0:
            count += 1
        node = s.node[node, col.PARENT]
    return count


@compiled
def use(s: Stream, node: int, hits: int, now_s: float) -> None:
    """A block and all above it are used now."""
    while node != len(s.node) - 1:
        s.node[node, col.HITS] += hits
        s.node_used_s[node] = now_s
        node = s.node[node, col.PARENT]


@compiled
def add(s: Stream, parent: int, chain: int, now_s: float) -> int:
    """A new block behind ``parent``; its slot."""
    slot: int = s.whole[col.FREE_NODE]
    s.whole[col.FREE_NODE] = s.node[slot, col.NEXT]
    last, row = s.node[parent, col.LAST_CHILD], s.node[slot]
    row[col.CHAIN], row[col.PARENT], row[col.FIRST_CHILD], row[col.LAST_CHILD] = chain, parent, -1, -1
    row[col.PREVIOUS], row[col.NEXT], row[col.DEPTH] = last, -1, s.node[parent, col.DEPTH] + 1
    row[col.HOLDS], row[col.HITS] = 0, 0
    if last >= 0:
        s.node[last, col.NEXT] = slot
    else:
        s.node[parent, col.FIRST_CHILD] = slot
    s.node[parent, col.LAST_CHILD] = slot
    s.node[parent, col.LEAF] = 0
    s.node_used_s[slot] = now_s
    s.whole[col.KV_BLOCKS] += 1
    _make_leaf(s, slot)
    return slot


@compiled
def evictable(s: Stream) -> bool:
    """Whether there is a block that may be given up."""
    for slot in range(len(s.node) - 1):
        if s.node[slot, col.LEAF] > 0 and s.node[slot, col.HOLDS] == 0:
            return True
    return False


@compiled
def drop_least(world: World, s: Stream, now_s: float) -> bool:
    """Give up the leaf that is worth least, of equals the one that became a leaf first; False if none may go."""
    least, worth = -1, 0.0
    for slot in range(len(s.node) - 1):
        if s.node[slot, col.LEAF] > 0 and s.node[slot, col.HOLDS] == 0:
            value = _value(world, s, slot, now_s)
            earlier = least >= 0 and value == worth and s.node[slot, col.LEAF] < s.node[least, col.LEAF]
            if least < 0 or value < worth or earlier:
                least, worth = slot, value
    if least < 0:
        return False
    _remove(s, least)
    return True


@compiled
def _value(world: World, s: Stream, slot: int, now_s: float) -> float:
    """``runtime.memory.prefixes.Prefixes.value``."""
    back_s = world.cost[col.BACK_S, s.node[slot, col.DEPTH]]
    age = world.real[col.HALF] ** ((now_s - s.node_used_s[slot]) / world.real[col.HALF_LIFE])
    value: float = back_s * (0.5 + s.node[slot, col.HITS]) * age / world.whole[col.BLOCK_BYTES]
    return value


@compiled
def _make_leaf(s: Stream, slot: int) -> None:
    s.whole[col.LEAVES_MADE] += 1
    s.node[slot, col.LEAF] = s.whole[col.LEAVES_MADE]


@compiled
def _remove(s: Stream, slot: int) -> None:
    parent, before, behind = s.node[slot, col.PARENT], s.node[slot, col.PREVIOUS], s.node[slot, col.NEXT]
    if before >= 0:
        s.node[before, col.NEXT] = behind
    else:
        s.node[parent, col.FIRST_CHILD] = behind
    if behind >= 0:
        s.node[behind, col.PREVIOUS] = before
    else:
        s.node[parent, col.LAST_CHILD] = before
    s.node[slot, col.LEAF], s.node[slot, col.CHAIN] = 0, -1
    s.node[slot, col.NEXT] = s.whole[col.FREE_NODE]
    s.whole[col.FREE_NODE] = slot
    s.whole[col.KV_BLOCKS] -= 1
    if s.node[parent, col.FIRST_CHILD] < 0 and parent != len(s.node) - 1:
        _make_leaf(s, parent)
