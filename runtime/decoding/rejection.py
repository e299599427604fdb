"""Verification by rejection sampling: the text is distributed as the target's own, whatever was guessed.

A guess x that was drawn from q is accepted with probability ``min(1, p(x) / q(x))``, p being what the target would draw
from at that position. At the first rejection the token is drawn from ``max(p - q, 0)``, normalised; if all guesses are
accepted, one more is drawn from p. Then every committed token is distributed as p, given those before it.
Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", theorem in appendix A.1;
Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling", algorithm 2.

A guess that was not drawn at all is a point mass: q(x) = 1. The proof needs two things of whoever guesses: q is exactly
the distribution of the draw, and whether a guess is sent does not depend on what was drawn for it (see
``runtime.decoding.drafters.base``).

There is no guard as in ``runtime.decoding.greedy``: rounding moves p by as much as it moves the logits, and no draw can
tell.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from runtime.decoding.greedy import Verdict
from runtime.decoding.sampling import Sampler
from runtime.engine.base import CausalModel


@torch.inference_mode()
def verify(
    target: CausalModel,
    text: Sequence[int],
    guesses: Sequence[int],
    probabilities: Sequence[torch.Tensor],
    eos_ids: Collection[int],
    sampler: Sampler,
) -> Verdict:
    """Forward the pending token and the guesses behind it, and accept or reject one by one.

    The target's cache grows by all that was forwarded; the caller crops it to what is committed.

    Args:
        target: Holds all committed tokens but the last, pending one.
        text: All committed tokens.
        guesses: Tokens to verify; none = plain decoding.
        probabilities: What each guess was drawn from, float32, shape (vocab,) of the target; none = point masses.
        eos_ids: Tokens that end the text.
        sampler: The request's, not greedy.
    """
    rows = target.forward((text[-1], *guesses), "all")  # (guesses + 1, vocab)
    seen = list(text)
    tokens: list[int] = []
    for position, guess in enumerate(guesses):
        p = sampler.distribution(rows[position], seen)
        q = probabilities[position].to(p.device) if probabilities else None
        if not sampler.accepts(float(p[guess]) if q is None else float(p[guess]) / float(q[guess])):
            tokens.append(sampler.draw(residual(p, q, guess)))
            return Verdict(tuple(tokens), position, 0)
        tokens.append(guess)
        seen.append(guess)
        if guess in eos_ids:
            return Verdict(tuple(tokens), position + 1, 0)
    tokens.append(sampler.choose(rows[-1], seen))
    return Verdict(tuple(tokens), len(guesses), 0)


def residual(p: torch.Tensor, q: torch.Tensor | None, guess: int) -> torch.Tensor:
    """Weights of the token behind a rejected guess: ``max(p - q, 0)``, shape (vocab,), not normalised.

    Args:
        p: The target's distribution, shape (vocab,).
        q: The draft's; None = all of it on ``guess``.
        guess: The rejected token.
    """
    if q is None:
        rest = p.clone()
        rest[guess] = 0.0
    else:
        rest = (p - q).clamp(min=0.0)
    return rest if bool(rest.any()) else p  # p = q up to rounding: a rejection is one too
