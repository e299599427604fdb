"""A whole text by the live decoder, checked round by round."""

from __future__ import annotations

from runtime.core import Request
from runtime.decoding.live import LiveDecoder
from tests.tiny import drafts


def decode_all(live: LiveDecoder, asked: Request, draft: int | None, gamma: int) -> tuple[int, ...]:
    """The text of a request, with one draft (None = plain) and draft length throughout."""
    tokens = [live.begin(asked, 0, ()).token]
    while not live.ended():
        done = live.round(draft, None if draft is None else drafts()[draft], gamma, 0.0)
        assert len(done.tokens) - done.accepted == 1 or (live.ended() and len(done.tokens) == done.accepted)
        tokens.extend(done.tokens)
        assert live.stored_tokens() == (*asked.prompt_ids, *tokens)[:-1]
    return tuple(tokens)
