"""The draft without weights: ``runtime.decoding.drafters.lookup`` over an index of all texts.

What a stream has seen is the list of its requests up to the present one, so nothing is kept but which of them are
still remembered; the index says where in each the n-gram occurred last.
"""

from __future__ import annotations

from envs.batched.kernel import columns as col
from envs.batched.kernel.bundle import Stream
from envs.batched.kernel.compiled import compiled
from envs.batched.kernel.tables import GRAM_STRIDE, Tables
from runtime.decoding.drafters.lookup import FULL_MATCH, LONGEST, SHORTEST


@compiled
def begin(tables: Tables, s: Stream) -> None:
    """The request in hand begins with one token of its text; an old generation may be forgotten."""
    if s.whole[col.YOUNG_TOKENS] > tables.memory[0]:
        s.whole[col.OLD], s.whole[col.YOUNG] = s.whole[col.YOUNG], s.whole[col.REQUEST]
        s.whole[col.YOUNG_TOKENS] = 1
    if s.whole[col.YOUNG_TOKENS] > 1:
        s.whole[col.YOUNG_TOKENS] += 1  # what stands between two requests
    s.whole[col.YOUNG_TOKENS] += tables.text[s.whole[col.TEXT], col.PROMPT] + 1


@compiled
def find(tables: Tables, s: Stream) -> None:
    """Note where the end of the committed text occurred before: the longest n-gram, its latest place."""
    request = s.whole[col.REQUEST]
    last = tables.text[s.whole[col.TEXT], col.TOKENS_AT] + _tokens(tables, s, request) - 1
    s.whole[col.FOUND_REQUEST] = -1
    for n in range(LONGEST, SHORTEST - 1, -1):
        gram = tables.gram[last, n - SHORTEST]
        if gram < 0:
            continue
        for earlier in range(request, s.whole[col.OLD] - 1, -1):
            text, tokens = s.plan[earlier, col.PLAN_TEXT], _tokens(tables, s, earlier)
            position = _last_before(tables, gram, text, tokens - 1)
            if position >= 0:
                s.whole[col.FOUND_REQUEST], s.whole[col.FOUND_AT] = earlier, position + 1
                s.whole[col.FOUND_LENGTH] = _extent(tables, s, text, position, n)
                return


@compiled
def propose(tables: Tables, s: Stream, draft: int, gamma: int, threshold: float) -> tuple[int, int]:
    """How many guesses are made behind what ``find`` found, and how many of them are right."""
    found, generated = s.whole[col.FOUND_REQUEST], s.whole[col.GENERATED]
    if found < 0:
        return 0, 0
    text, own = s.plan[found, col.PLAN_TEXT], s.whole[col.TEXT]
    source, end, at = tables.text[text, col.TOKENS_AT], _tokens(tables, s, found), s.whole[col.FOUND_AT]
    truth = tables.text[own, col.TOKENS_AT] + tables.text[own, col.PROMPT] + generated
    sent, accepted, reached = 0, 0, 1.0
    while sent < gamma:
        place = at + sent
        if place >= end:
            if found != s.whole[col.REQUEST]:
                break
            place = at + sent % (end - at)  # copying goes on into the guesses
        token = tables.token[source + place]
        reached = reached * tables.chance[draft, min(s.whole[col.FOUND_LENGTH] + sent, FULL_MATCH)]
        if accepted == sent and generated + sent < s.whole[col.END] and token == tables.token[truth + sent]:
            accepted += 1
        sent += 1
        if reached < threshold or _ends(tables, token):
            break
    return sent, accepted


@compiled
def _tokens(tables: Tables, s: Stream, request: int) -> int:
    """Tokens of a request that are known: all of an earlier one."""
    prompt: int = tables.text[s.plan[request, col.PLAN_TEXT], col.PROMPT]
    written: int = s.whole[col.GENERATED] if request == s.whole[col.REQUEST] else s.plan[request, col.PLAN_END]
    return prompt + written


@compiled
def _last_before(tables: Tables, gram: int, text: int, limit: int) -> int:
    """The last position before ``limit`` at which an n-gram of a text ends; -1 = none."""
    first, end = tables.gram_at[gram], tables.gram_at[gram + 1]
    low, high, key = first, end, text * GRAM_STRIDE + limit
    while low < high:  # the first entry that is not before the limit
        middle = (low + high) // 2
        if tables.gram_key[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low == first:
        return -1
    position: int = tables.gram_key[low - 1] - text * GRAM_STRIDE
    return max(position, -1)


@compiled
def _extent(tables: Tables, s: Stream, text: int, position: int, length: int) -> int:
    """Equal tokens behind which both go on, ``length`` of them known, up to ``FULL_MATCH``."""
    own = s.whole[col.TEXT]
    here, there = tables.text[own, col.TOKENS_AT], tables.text[text, col.TOKENS_AT]
    tokens = tables.text[own, col.PROMPT] + s.whole[col.GENERATED]
    most = min(FULL_MATCH, tokens, position + 1)
    while length < most and tables.token[there + position - length] == tables.token[here + tokens - 1 - length]:
        length += 1
    return length


@compiled
def _ends(tables: Tables, token: int) -> bool:
    for end in tables.ends:
        if token == end:
            return True
    return False
