"""What is stored behind rejected guesses: the KV of committed text, block by block the same as without drafts."""

from __future__ import annotations

import pytest
import torch

from runtime.core import Request
from runtime.session import DecodeSession
from tests.session.tiny_session import N, guess, open_tiny, serve, text
from tests.tiny import KINDS, VOCAB, plain_text

NEVER, SOMETIMES = KINDS.index("never"), KINDS.index("sometimes")
ANSWER = 12


def whole_blocks() -> Request:
    """Prompt and answer fill blocks to the last token, and the answer ends with a correction: an ending token."""
    prompt = tuple((7 * i * i + 3 * i) % VOCAB for i in range(2 * N - ANSWER))
    answer = plain_text(ANSWER, prompt)
    assert answer.index(answer[-1]) == ANSWER - 1, "the ending token comes once"
    return Request("whole", prompt, 40, frozenset(answer[-1:]))


def stored(session: DecodeSession) -> dict[str, torch.Tensor]:
    """KV of every block, by the tokens from the start."""
    return {node.name(): node.payload.buffer for node in session.memory.kv.tree.nodes()}


@pytest.mark.parametrize(("draft", "gamma"), [(NEVER, 1), (NEVER, 8), (SOMETIMES, 4)])
def test_stored_blocks_are_those_of_plain_decoding(draft: int, gamma: int) -> None:
    """vllm #43559, sglang #8726, #24175: rejected guesses reached the prefix cache.

    The last token of the text was never forwarded, so the block that it would fill is not stored.
    """
    asked = whole_blocks()
    plain, drafted = open_tiny()[0], open_tiny()[0]
    (expected,), (got,) = serve(plain, [asked]), serve(drafted, [asked], guess(draft, gamma))
    assert text(got) == text(expected) == plain_text(ANSWER, asked.prompt_ids)
    assert any(o.round is not None and o.round.drafted > o.round.accepted for o in got)
    ours, theirs = stored(drafted), stored(plain)
    assert list(ours) == list(theirs) and len(ours) == 1
    for name, buffer in theirs.items():
        torch.testing.assert_close(ours[name], buffer, rtol=1e-4, atol=1e-5)
    assert drafted.counters.kv_retained_bytes == plain.counters.kv_retained_bytes


@pytest.mark.parametrize(("draft", "gamma"), [(NEVER, 8), (SOMETIMES, 4)])
def test_what_follows_on_a_stored_answer_is_plain_too(draft: int, gamma: int) -> None:
    """vllm #43559, #18668: text behind a prefix that was stored while guesses were rejected."""
    asked = whole_blocks()
    answer = plain_text(ANSWER, asked.prompt_ids)
    follow_up = Request("next", (*asked.prompt_ids, *answer, 3, 1, 4), 12)
    long = Request("long", follow_up.prompt_ids, 36)
    session, _ = open_tiny()
    served = serve(session, [asked, follow_up, long, long], guess(draft, gamma))
    assert [outcomes[0].reused_tokens for outcomes in served] == [0, N, 2 * N, len(long.prompt_ids) - 1]
    for request, outcomes in zip((follow_up, long, long), served[1:], strict=True):
        assert text(outcomes) == plain_text(request.max_new_tokens, request.prompt_ids)
