"""Writing the corpus: every prompt of every domain, answered by the target, in resumable batches.

Killed and started again it goes on behind the last finished batch, because a batch is named by its prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from envs.zoo.prompts import DEFAULT_COUNTS, PromptCounts, Split, load_grammar
from envs.zoo.target import Target
from envs.zoo.texts import Prompt, Text, TextStore, first_wave, next_turn_wave, rag_wave, read_texts, write_texts
from envs.zoo.writing import write_batch
from runtime.errors import UserError

BATCH = 96
LONG_BATCH = 48
LONG_PROMPT = 200
"""Prompts of this many tokens and more are answered ``LONG_BATCH`` at a time."""

OUTPUT_TOKENS: dict[Split, int] = {"distill": 112, "train": 128, "heldout": 128}
"""Most tokens written for a prompt."""


def corpus_file(path: Path) -> Path:
    """The corpus meant by a path: the file itself, or ``corpus.parquet`` in a folder."""
    return path if path.suffix == ".parquet" else path / "corpus.parquet"


def load_or_write_corpus(
    path: Path,
    target: Target,
    grammars: Path,
    domains: Sequence[str],
    seed: int,
    counts: dict[Split, PromptCounts] = DEFAULT_COUNTS,
) -> list[Text]:
    """All texts of a corpus, written first if its file does not exist.

    Args:
        path: A Parquet file, or a folder for ``corpus.parquet``; unfinished batches lie in ``texts/`` beside it.
        target: Who writes.
        grammars: Folder with one ``<domain>.yaml`` a domain.
        domains: Domains to write, in this order; none = all of the folder.
        seed: Which prompts are drawn.
        counts: How many prompts of each kind.

    Raises:
        UserError: If a grammar is missing or unusable.
    """
    file = corpus_file(path)
    if not file.exists():
        texts = write_corpus(file.parent / "texts", target, read_grammars(grammars, domains), counts, seed)
        write_texts(file, texts)
    return list(read_texts(file))


def read_grammars(folder: Path, domains: Sequence[str]) -> dict[str, list[str]]:
    """Prompts by domain.

    Raises:
        UserError: If a domain has no file, or a file is not a grammar.
    """
    names = list(domains) or sorted(path.stem for path in folder.glob("*.yaml"))
    if not names:
        raise UserError(f"{folder}: expected one <domain>.yaml a domain, found none; see envs/zoo/prompts for examples")
    grammars: dict[str, list[str]] = {}
    for name in names:
        path = folder / f"{name}.yaml"
        if not path.is_file():
            raise UserError(f"{path}: expected the prompt grammar of domain '{name}', found no such file")
        try:
            grammars[name] = load_grammar(path)
        except ValueError as error:
            raise UserError(str(error)) from error
    return grammars


def write_corpus(
    shards: Path, target: Target, grammars: dict[str, list[str]], counts: dict[Split, PromptCounts], seed: int
) -> list[Text]:
    """Answer all prompts, wave by wave.

    Args:
        shards: Folder of finished batches.
        target: Who writes.
        grammars: Prompts by domain.
        counts: How many prompts of each kind.
        seed: Which prompts are drawn.

    Returns:
        All texts, in the order they were written.

    Raises:
        UserError: If a grammar yields too few prompts.
    """
    store = TextStore(shards)
    texts: list[Text] = []
    try:
        for domain, prompts in grammars.items():
            texts += _write_wave(store, target, first_wave(domain, prompts, counts, seed), f"{domain}: prompts")
        for domain, prompts in grammars.items():
            wave = rag_wave(domain, prompts, counts, seed, texts)
            texts += _write_wave(store, target, wave, f"{domain}: questions on documents")
    except ValueError as error:
        raise UserError(str(error)) from error
    for turn in range(1, max(count.turns for count in counts.values())):
        wave = next_turn_wave(texts, turn, counts, seed)
        texts += _write_wave(store, target, wave, f"conversations: turn {turn + 1}")
    return texts


def _write_wave(store: TextStore, target: Target, wave: Sequence[Prompt], label: str) -> list[Text]:
    items = sorted(
        ((target.encode(json.loads(prompt.messages)), prompt) for prompt in wave),
        key=lambda item: (OUTPUT_TOKENS[item[1].split], len(item[0]), item[1].prompt_id),
    )
    texts: list[Text] = []
    with tqdm(total=len(items), desc=label, unit="text", disable=None) as bar:
        for batch in _batches(items):
            prompts = [prompt for _, prompt in batch]
            done = store.get(prompts)
            if done is None:
                done = _answer(target, batch)
                store.put(prompts, done)
            texts += done
            bar.update(len(done))
    return texts


def _batches(items: Sequence[tuple[list[int], Prompt]]) -> Iterator[list[tuple[list[int], Prompt]]]:
    """Neighbours of a sorted list that are answered together: one output limit, fewer rows where prompts are long."""
    start = 0
    while start < len(items):
        ids, prompt = items[start]
        size = BATCH if len(ids) < LONG_PROMPT else LONG_BATCH
        limit = OUTPUT_TOKENS[prompt.split]
        batch = [item for item in items[start : start + size] if OUTPUT_TOKENS[item[1].split] == limit]
        yield batch
        start += len(batch)


def _answer(target: Target, batch: Sequence[tuple[list[int], Prompt]]) -> list[Text]:
    limit = OUTPUT_TOKENS[batch[0][1].split]
    written = write_batch(target.model, [ids for ids, _ in batch], limit, target.eos_ids, min(target.eos_ids))
    return [
        Text(prompt, ids, output, target.decode(output)) for (ids, prompt), output in zip(batch, written, strict=True)
    ]
