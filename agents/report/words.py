"""The field's words, for the page."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "token": "a piece of a word; what the models read and write",
    "target": "the large model whose text is wanted",
    "draft": "a small model that guesses the target's next tokens; 'lookup' repeats what the text said before",
    "round": "a draft guesses, the target checks all guesses in one pass, the right ones and one token of its own stay",
    "gamma": "most guesses of a round; 0 = plain decoding, no guess",
    "accepted": "guesses that were the target's own next tokens",
    "resident": "in memory and usable at once",
    "stall": "nothing is written because a load is waited for",
    "stored KV": "what the target has computed for earlier prompts, kept for prompts that begin alike",
    "stream": "requests one after another, on changing topics; memory is kept from one to the next",
    "95% interval": "where the value would lie in 95 of 100 draws of other streams like these",
}
