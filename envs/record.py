"""Record traces: ``python -m envs.record --target FOLDER --drafts FOLDER --corpus FILE --out FILE``.

The corpus may also be a trace file: a new draft is then recorded along the texts of an earlier recording.
Works through the corpus in shards beside ``--out``; killed and started again it goes on behind the last finished
shard. The trace file appears whole, and the shards are removed then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from tqdm import tqdm

from envs.guesses import FLOOR, follow
from envs.traces import DraftRef, DraftTrace, Trace, TraceSet, concatenated
from envs.zoo.corpus import corpus_file
from envs.zoo.plan import texts_sha256
from envs.zoo.target import load_target
from envs.zoo.texts import Prompt, Text, read_texts
from runtime.engine.draft_file import SUFFIX, read_draft
from runtime.engine.draft_net import DraftNet, build_draft_net
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.sources import resolve_model
from runtime.errors import UserError
from runtime.files import sha256_file

SHARD = 32
"""Texts of a shard."""


class Recorder:
    """Records every draft of one target along texts.

    Args:
        target: Fingerprint of the target.
        embed: Its input embedding.
        drafts: The drafts and where they came from.
        eos_ids: Tokens that end a text.
        floor: Confidence below which a doomed run-on is given up; see ``envs.guesses``.
        workers: Drafts recorded at once. With one thread a draft this is faster than one draft on all threads: the
            matrices are small.
    """

    def __init__(
        self,
        target: str,
        embed: nn.Module,
        drafts: Sequence[tuple[DraftRef, DraftNet]],
        eos_ids: frozenset[int],
        floor: float = FLOOR,
        workers: int = 1,
    ) -> None:
        self.target, self.embed, self.eos_ids, self.floor = target, embed, eos_ids, floor
        self.refs = tuple(ref for ref, _ in drafts)
        self.nets = tuple(net for _, net in drafts)
        self._pool = ThreadPoolExecutor(workers, "recorder")

    def trace(self, text: Text) -> Trace:
        """Record one text."""
        prompt = text.prompt

        def along_text(net: DraftNet) -> DraftTrace:
            return follow(net, self.embed, text.prompt_ids, text.output_ids, self.eos_ids, self.floor)

        drafts = tuple(self._pool.map(along_text, self.nets))
        return Trace(
            prompt.prompt_id,
            prompt.domain,
            prompt.split,
            prompt.kind,
            prompt.group,
            prompt.turn,
            tuple(text.prompt_ids),
            tuple(text.output_ids),
            drafts,
        )

    def record(self, texts: Sequence[Text], out: Path) -> TraceSet:
        """Record all texts into a file, shard by shard.

        Raises:
            UserError: If a text is empty or goes on behind its end.
        """
        for text in texts:
            if not text.output_ids or not self.eos_ids.isdisjoint(text.output_ids[:-1]):
                raise UserError(
                    f"prompt {text.prompt.prompt_id}: expected a text that ends with its end-of-text token, got "
                    f"{'none' if not text.output_ids else 'one that goes on behind it'}: write the corpus again"
                )
        folder = out.with_name(f".{out.name}.shards")
        parts = []
        with tqdm(total=len(texts), desc="recording", unit="text", disable=None) as bar:
            for begin in range(0, len(texts), SHARD):
                batch = texts[begin : begin + SHARD]
                parts.append(self._shard(folder, batch))
                bar.update(len(batch))
        traces = concatenated(parts)
        traces.save(out)
        shutil.rmtree(folder, ignore_errors=True)
        return traces

    def _shard(self, folder: Path, batch: Sequence[Text]) -> TraceSet:
        made_of = [self.target, [[ref.name, ref.sha256] for ref in self.refs], self.floor, texts_sha256(batch)]
        path = folder / f"{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}.parquet"
        if path.exists():
            return TraceSet.load(path)
        shard = TraceSet(self.target, self.refs, self.eos_ids, tuple(self.trace(text) for text in batch))
        shard.save(path)
        return shard


def read_drafts(folder: Path, target: str, target_folder: Path | None = None) -> list[tuple[DraftRef, DraftNet]]:
    """Every draft of a folder, by name.

    Args:
        folder: Folder of the draft files.
        target: Fingerprint of the target.
        target_folder: The target's folder, for drafts that are made of its layers.

    Raises:
        UserError: If there is none, one is damaged, or one belongs to another target.
    """
    drafts = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        draft = read_draft(path, target_folder)
        if draft.header.target_sha256 != target:
            raise UserError(
                f"{path}: expected a draft of target {target[:12]}…, got one of {draft.header.target_sha256[:12]}…: "
                "distill it for this target"
            )
        drafts.append((DraftRef(draft.header.name, sha256_file(path)), build_draft_net(draft)))
    if not drafts:
        raise UserError(f"{folder}: expected draft files (*{SUFFIX}), found none: build them with envs.zoo.distill")
    return drafts


def read_corpus(path: Path, target: str) -> list[Text]:
    """The texts of a corpus, or those that a trace file was recorded along.

    Args:
        path: A Parquet file of either kind, or a corpus's folder.
        target: Fingerprint of the target; a trace file says whose texts it holds.

    Raises:
        UserError: If there is no such file, or it holds traces of another target.
    """
    file = existing_corpus(path)
    try:
        metadata = pq.read_schema(file).metadata or {}
        if b"specpilot.schema" not in metadata:
            return list(read_texts(file))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{file}: not a readable corpus ({error}): write it again") from None
    return [_text_of(trace) for trace in TraceSet.load(file, target).traces]


def existing_corpus(path: Path) -> Path:
    """The file that is meant by a corpus's path.

    Raises:
        UserError: If there is none.
    """
    file = corpus_file(path)
    if not file.is_file():
        raise UserError(f"no corpus at {file}: check the path, or write one with `python -m envs.zoo.distill`")
    return file


def _text_of(trace: Trace) -> Text:
    names = {name: getattr(trace, name) for name in Prompt.__dataclass_fields__ if name != "messages"}
    return Text(Prompt(**names, messages="[]"), list(trace.prompt_ids), list(trace.output_ids), "")


def limited(texts: Sequence[Text], limit: int) -> list[Text]:
    """At most ``limit`` texts of every split, evenly over domains and kinds, whole groups only.

    Groups are taken one at a time in the order of the texts, from the domain and kind that has given the fewest texts
    so far; a group that would pass the limit is left out.
    """
    groups: dict[tuple[str, str, str], dict[str, list[Text]]] = {}
    for text in texts:
        prompt = text.prompt
        found = groups.setdefault((prompt.split, prompt.domain, prompt.kind), {})
        found.setdefault(prompt.group, []).append(text)
    waiting = {cell: iter(found.values()) for cell, found in groups.items()}
    taken = dict.fromkeys(waiting, 0)
    total: Counter[str] = Counter()
    chosen: set[str] = set()
    while waiting:
        cell = min(waiting, key=lambda name: taken[name])
        group = next(waiting[cell], None)
        if group is None or total[cell[0]] + len(group) > limit:
            del waiting[cell]
            continue
        chosen |= {text.prompt.group for text in group}
        taken[cell] += len(group)
        total[cell[0]] += len(group)
    return [text for text in texts if text.prompt.group in chosen]


def record(options: argparse.Namespace) -> TraceSet:
    """Record as the command line says.

    Raises:
        UserError: If the target, a draft, the corpus or a split does not work.
    """
    torch.set_num_threads(1)
    for path in options.corpus:  # before the target is loaded, which takes longer
        existing_corpus(path)
    folder = resolve_model(options.target)
    target = load_target(str(folder))
    fingerprint = target_fingerprint(target.model)
    splits = [name.strip() for name in options.splits.split(",")]
    texts = [text for path in options.corpus for text in read_corpus(path, fingerprint) if text.prompt.split in splits]
    if missing := sorted(set(splits) - {text.prompt.split for text in texts}):
        raise UserError(
            f"{', '.join(map(str, options.corpus))}: no text of the splits {', '.join(missing)}: name splits that the "
            "corpus has"
        )
    if options.limit:
        texts = limited(texts, options.limit)
    drafts = read_drafts(options.drafts, fingerprint, folder)
    embed = target.model.get_input_embeddings()
    recorder = Recorder(fingerprint, embed, drafts, target.eos_ids, workers=options.workers)
    return recorder.record(texts, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m envs.record",
        description="Record what every draft would have said along a corpus. Safe to kill and to run again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_options(parser)
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="drafts recorded at once, one processor thread each"
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is recorded along what, and where it goes."""
    add = parser.add_argument
    add("--target", required=True, help="Hugging Face folder or hub id of the target")
    add("--drafts", required=True, type=Path, help="folder of draft files")
    add("--corpus", required=True, type=Path, action="append", help="Parquet file of texts or traces; may be repeated")
    add("--splits", default="train,heldout", help="comma-separated splits to record")
    add("--limit", type=int, default=0, help="most texts of a split, evenly over domains and kinds; 0 = all")
    add("--out", required=True, type=Path, help="trace file to write")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    try:
        traces = record(_parser().parse_args(arguments))
    except UserError as error:
        print(f"record: {error}", file=sys.stderr)
        return 2
    for index, ref in enumerate(traces.drafts):
        right = sum(int(trace.drafts[index].match.sum()) for trace in traces.traces)
        tokens = sum(len(trace.output_ids) for trace in traces.traces)
        print(f"{ref.name:>12}  {right / tokens:.3f} of {tokens} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
