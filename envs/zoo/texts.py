"""The corpus of a zoo: every prompt with the text the target wrote for it, in resumable shards.

Prompts depend on earlier texts: a document is made of texts of the distilling split, a follow-up turn quotes the
turn before. So the corpus is written in waves; each wave is written in batches, each batch is one Parquet shard that
appears whole or not at all. Running the builder again continues behind the last finished shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from envs.zoo.prompts import FOLLOW_UPS, Kind, PromptCounts, Split, split_prompts

Message: TypeAlias = dict[str, str]
Encode: TypeAlias = Callable[[list[Message]], list[int]]
"""Chat messages to prompt token ids, generation prompt included."""

DOCUMENT_PARTS = 3
"""Texts of the distilling split that make up one shared document."""


@dataclass(frozen=True)
class Prompt:
    """One prompt before the target has answered it.

    Attributes:
        prompt_id: Unique and stable name, e.g. ``code-train-rag-3-1``.
        domain: Domain name.
        split: ``distill``, ``train`` or ``heldout``.
        kind: ``single``, ``rag`` (a shared document first) or ``chat`` (a turn of a conversation).
        group: Prompts of one group share a document or a conversation.
        turn: Question number of a document, or turn of a conversation; 0 for a single prompt.
        messages: The conversation, as JSON.
    """

    prompt_id: str
    domain: str
    split: Split
    kind: Kind
    group: str
    turn: int
    messages: str


@dataclass(frozen=True)
class Text:
    """A prompt with the target's answer. ``prompt_ids`` and ``output_ids`` are token ids."""

    prompt: Prompt
    prompt_ids: list[int]
    output_ids: list[int]
    output: str


SCHEMA = pa.schema(
    [(name, pa.int32() if name == "turn" else pa.string()) for name in Prompt.__dataclass_fields__]
    + [("prompt_ids", pa.list_(pa.int32())), ("output_ids", pa.list_(pa.int32())), ("output", pa.string())]
)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def first_wave(domain: str, prompts: Sequence[str], counts: dict[Split, PromptCounts], seed: int) -> list[Prompt]:
    """Single prompts and first turns: what depends on no other text."""
    wave: list[Prompt] = []
    for split, drawn in split_prompts(list(prompts), counts, seed).items():
        count = counts[split]
        for index, text in enumerate(drawn[: count.single]):
            name = f"{domain}-{split}-single-{index}"
            wave.append(Prompt(name, domain, split, "single", name, 0, json.dumps([_user(text)])))
        for index, text in enumerate(drawn[len(drawn) - count.chats :] if count.chats else []):
            group = f"{domain}-{split}-chat-{index}"
            wave.append(Prompt(f"{group}-0", domain, split, "chat", group, 0, json.dumps([_user(text)])))
    return wave


def rag_wave(
    domain: str, prompts: Sequence[str], counts: dict[Split, PromptCounts], seed: int, texts: Iterable[Text]
) -> list[Prompt]:
    """Questions about shared documents; a document is a few texts of the distilling split, one after another."""
    pool = sorted(
        (t for t in texts if t.prompt.domain == domain and t.prompt.split == "distill" and t.prompt.kind == "single"),
        key=lambda t: t.prompt.prompt_id,
    )
    random.Random(seed).shuffle(pool)
    wave: list[Prompt] = []
    for split, drawn in split_prompts(list(prompts), counts, seed).items():
        count = counts[split]
        questions = iter(drawn[count.single :])
        for index in range(count.documents):
            parts, pool = pool[:DOCUMENT_PARTS], pool[DOCUMENT_PARTS:]
            document = "\n\n".join(part.output.strip() for part in parts)
            group = f"{domain}-{split}-rag-{index}"
            for turn in range(count.questions):
                content = f"Here are some notes.\n\n{document}\n\nWith these notes in mind: {next(questions)}"
                messages = json.dumps([_user(content)])
                wave.append(Prompt(f"{group}-{turn}", domain, split, "rag", group, turn, messages))
    return wave


def next_turn_wave(texts: Iterable[Text], turn: int, counts: dict[Split, PromptCounts], seed: int) -> list[Prompt]:
    """The ``turn``-th user turn of every conversation that goes on."""
    wave: list[Prompt] = []
    for text in texts:
        prompt = text.prompt
        if prompt.kind != "chat" or prompt.turn != turn - 1 or turn >= counts[prompt.split].turns:
            continue
        follow_up = random.Random(f"{seed}-{prompt.group}-{turn}").choice(FOLLOW_UPS)
        history = [*json.loads(prompt.messages), {"role": "assistant", "content": text.output}, _user(follow_up)]
        wave.append(replace(prompt, prompt_id=f"{prompt.group}-{turn}", turn=turn, messages=json.dumps(history)))
    return wave


class TextStore:
    """A folder of Parquet shards, one a finished batch; a shard is written aside and renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _shard(self, batch: Sequence[Prompt]) -> Path:
        key = hashlib.sha256(json.dumps([asdict(prompt) for prompt in batch]).encode()).hexdigest()[:16]
        return self.folder / f"{key}.parquet"

    def get(self, batch: Sequence[Prompt]) -> list[Text] | None:
        """The texts of a finished batch, or None."""
        path = self._shard(batch)
        return list(read_texts(path)) if path.exists() else None

    def put(self, batch: Sequence[Prompt], texts: Sequence[Text]) -> None:
        """Keep a finished batch."""
        write_texts(self._shard(batch), texts)


def write_texts(path: Path, texts: Sequence[Text]) -> None:
    """Write a Parquet file of texts, aside first."""
    rows = [
        {**asdict(t.prompt), "prompt_ids": t.prompt_ids, "output_ids": t.output_ids, "output": t.output} for t in texts
    ]
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), aside, compression="zstd")
    aside.replace(path)


def read_texts(path: Path) -> Iterator[Text]:
    """Read a Parquet file of texts."""
    for row in pq.read_table(path, schema=SCHEMA).to_pylist():
        prompt = Prompt(**{name: row[name] for name in Prompt.__dataclass_fields__})
        yield Text(prompt, row["prompt_ids"], row["output_ids"], row["output"])
