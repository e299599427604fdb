"""What many different clients ask, for servers under load: kinds, lengths and domains mixed, the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from envs.zoo.corpus import read_grammars
from envs.zoo.prompts import FOLLOW_UPS, PROMPT_FOLDER
from runtime.errors import UserError

KINDS = {"whole": 3, "stream": 3, "turn": 4, "text": 2, "sampled": 2, "cancelled": 2}
"""How often each kind comes.

``whole`` and ``stream``: a chat of one message; ``turn``: the next message of a chat; ``text``: a text completion;
``sampled``: a chat with temperature and seed; ``cancelled``: a stream that its client leaves half way.
"""

FEWEST_TOKENS, MOST_TOKENS = 16, 48


class Ask(NamedTuple):
    """One request.

    Attributes:
        kind: One of ``KINDS``.
        prompt: What is said; in a chat that goes on, the first message of a new one.
        follow_up: What is said in a chat that goes on.
        max_tokens: Most tokens of the answer.
        seed: For sampling.
    """

    kind: str
    prompt: str
    follow_up: str
    max_tokens: int
    seed: int


def prompts_by_domain(most_words: int) -> dict[str, list[str]]:
    """The default zoo's prompts that have at most so many words.

    Raises:
        UserError: If there are none.
    """
    found = {
        domain: [prompt for prompt in prompts if len(prompt.split()) <= most_words]
        for domain, prompts in read_grammars(PROMPT_FOLDER, ()).items()
    }
    if not all(found.values()):
        raise UserError(f"no prompts of at most {most_words} words: the context of this model is too short")
    return found


def asks(prompts: Mapping[str, Sequence[str]], seed: int) -> Iterator[Ask]:
    """Requests without end; domains in turn."""
    rng, domains = random.Random(seed), sorted(prompts)
    kinds, weights = list(KINDS), list(KINDS.values())
    while True:
        for domain in domains:
            yield Ask(
                rng.choices(kinds, weights)[0],
                rng.choice(prompts[domain]),
                rng.choice(FOLLOW_UPS),
                rng.randint(FEWEST_TOKENS, MOST_TOKENS),
                rng.randrange(1 << 31),
            )
