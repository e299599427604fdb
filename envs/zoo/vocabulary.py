"""A draft's trimmed vocabulary: the tokens its domain's texts use most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from envs.zoo.texts import Text


def trim_vocabulary(texts: Sequence[Text], rows: int) -> torch.Tensor:
    """The most frequent tokens of the texts, filled up with those of their prompts.

    Args:
        texts: Texts the draft learns from.
        rows: Most tokens to keep.

    Returns:
        ``(V,)`` int32 token ids, ascending; ``V`` is less than ``rows`` where the texts have fewer distinct tokens.

    Raises:
        ValueError: If there is no text or no row.
    """
    if rows < 1 or not texts:
        raise ValueError(f"expected at least one row and one text, got {rows} rows and {len(texts)} texts")
    written = Counter(token for text in texts for token in text.output_ids)
    read = Counter(token for text in texts for token in text.prompt_ids)
    ranked = sorted({*written, *read}, key=lambda token: (-written[token], -read[token], token))
    return torch.tensor(sorted(ranked[:rows]), dtype=torch.int32)


def covered(texts: Sequence[Text], vocab: torch.Tensor) -> float:
    """Fraction of the written tokens that the vocabulary holds: the ceiling of a draft's agreement."""
    known = set(vocab.tolist())
    tokens = [token for text in texts for token in text.output_ids]
    return sum(token in known for token in tokens) / max(1, len(tokens))
