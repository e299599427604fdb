"""Record traces: ``python -m envs.record --target FOLDER --drafts FOLDER --corpus FILE --out FILE``.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from envs.guesses import FLOOR, follow
from envs.traces import DraftRef, DraftTrace, Trace, TraceSet, concatenated
from envs.zoo.corpus import corpus_file
from envs.zoo.plan import texts_sha256
from envs.zoo.target import load_target
from envs.zoo.texts import Text, read_texts
from runtime.engine.draft_file import SUFFIX, read_draft
from runtime.engine.draft_net import DraftNet, build_draft_net
from runtime.engine.fingerprint import target_fingerprint
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


def read_drafts(folder: Path, target: str) -> list[tuple[DraftRef, DraftNet]]:
    """Every draft of a folder, by name.

    Raises:
        UserError: If there is none, one is damaged, or one belongs to another target.
    """
    drafts = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        draft = read_draft(path)
        if draft.header.target_sha256 != target:
            raise UserError(
                f"{path}: expected a draft of target {target[:12]}…, got one of {draft.header.target_sha256[:12]}…: "
                "distill it for this target"
            )
        drafts.append((DraftRef(draft.header.name, sha256_file(path)), build_draft_net(draft)))
    if not drafts:
        raise UserError(f"{folder}: expected draft files (*{SUFFIX}), found none: build them with envs.zoo.distill")
    return drafts


def record(options: argparse.Namespace) -> TraceSet:
    """Record as the command line says.

    Raises:
        UserError: If the target, a draft, the corpus or a split does not work.
    """
    torch.set_num_threads(1)
    file = corpus_file(options.corpus)
    if not file.is_file():
        raise UserError(f"no corpus at {file}: check the path, or write one with `python -m envs.zoo.distill`")
    splits = [name.strip() for name in options.splits.split(",")]
    texts = [text for text in read_texts(file) if text.prompt.split in splits]
    if missing := sorted(set(splits) - {text.prompt.split for text in texts}):
        raise UserError(f"{file}: no text of the splits {', '.join(missing)}: name splits that the corpus has")
    target = load_target(options.target)
    fingerprint = target_fingerprint(target.model)
    drafts = read_drafts(options.drafts, fingerprint)
    embed = target.model.get_input_embeddings()
    recorder = Recorder(fingerprint, embed, drafts, target.eos_ids, workers=options.workers)
    return recorder.record(texts, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m envs.record",
        description="Record what every draft would have said along a corpus. Safe to kill and to run again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--target", required=True, help="Hugging Face folder or hub id of the target")
    add("--drafts", required=True, type=Path, help="folder of draft files")
    add("--corpus", required=True, type=Path, help="Parquet file of texts, or its folder")
    add("--splits", default="train,heldout", help="comma-separated splits to record")
    add("--out", required=True, type=Path, help="trace file to write")
    add("--workers", type=int, default=os.cpu_count() or 1, help="drafts recorded at once, one processor thread each")
    return parser


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
