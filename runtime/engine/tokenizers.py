"""Whether tokenizers and models mean the same by a token id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer

from runtime.errors import UserError


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is looked at."""

    def get_vocab(self) -> Mapping[str, int]:
        """Token to id, added tokens included."""
        ...


def load_tokenizer(source: Path | str) -> Any:
    """The tokenizer of a local folder.

    Raises:
        UserError: If there is none that can be read.
    """
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise UserError(
            f"{source}: expected a folder with a tokenizer (tokenizer.json), got: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}; check the path or fetch the model again with "
            "`specpilot pull`"
        ) from error


def refuse_unless_same_tokenizer(one: Tokenizer, other: Tokenizer) -> None:
    """Make sure that two tokenizers give every token the same id.

    Sizes say nothing: tokenizers of one size may number their tokens differently, and the text of one read with the
    other is garbage. Source: huggingface/transformers #30728.

    Raises:
        UserError: Naming the first token that differs.
    """
    ours, theirs = one.get_vocab(), other.get_vocab()
    if ours == theirs:
        return
    differing = sorted(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
    token = differing[0]
    raise UserError(
        f"the tokenizers differ in {len(differing)} of {len({*ours, *theirs})} tokens: {token!r} has id "
        f"{ours.get(token, 'none')} in one and {theirs.get(token, 'none')} in the other; use the target's own "
        "tokenizer, and drafts that were made with it"
    )


def refuse_unless_model_has_rows(tokenizer: Tokenizer, rows: int) -> None:
    """Make sure that a model knows every token of a tokenizer.

    A model may have more rows than the tokenizer has tokens: many pad their table to a multiple of 64 or 128. Such a
    row is an ordinary token to the decoder, as it is in plain decoding, and stands for no text.

    Args:
        tokenizer: The tokenizer.
        rows: Token ids the model has.

    Raises:
        UserError: If the tokenizer can give an id beyond the model's rows.
    """
    vocab = tokenizer.get_vocab()
    last = max(vocab, key=lambda token: vocab[token])
    if vocab[last] >= rows:
        raise UserError(
            f"the tokenizer has ids up to {vocab[last]} ({last!r}), expected less than {rows} (the model's rows): it "
            "belongs to another model, or tokens were added without resizing the model; use the model's own tokenizer"
        )
