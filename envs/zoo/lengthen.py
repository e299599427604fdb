"""Long answers to a zoo's prompts, as traces: ``python -m envs.zoo.lengthen --zoo FOLDER --tokens 1024 --out FILE``.

The target writes on where the shipped traces were cut, up to so many tokens, and every draft is recorded along the
longer texts. For the study of answer lengths, which the shipped traces are too short for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from envs.record import Recorder, limited, read_corpus, read_drafts
from envs.traces import TraceSet
from envs.zoo.target import Target, load_target
from envs.zoo.texts import Text
from envs.zoo.writing import write_batch
from runtime.engine.sources import resolve_first
from runtime.errors import UserError
from runtime.zoo import Zoo

BATCH = 24
DRAFTS = "drafts"


def longer(target: Target, texts: Sequence[Text], tokens: int, progress: bool) -> list[Text]:
    """The same prompts, each answered with up to ``tokens`` tokens."""
    written: list[Text] = []
    ordered = sorted(texts, key=lambda text: len(text.prompt_ids))  # neighbours of a batch have about one length
    with tqdm(total=len(ordered), desc="writing", unit="text", disable=not progress) as bar:
        for begin in range(0, len(ordered), BATCH):
            batch = ordered[begin : begin + BATCH]
            prompts = [text.prompt_ids for text in batch]
            answers = write_batch(target.model, prompts, tokens, target.eos_ids, min(target.eos_ids))
            written += [
                Text(text.prompt, text.prompt_ids, answer, target.decode(answer))
                for text, answer in zip(batch, answers, strict=True)
            ]
            bar.update(len(batch))
    return written


def lengthen(options: argparse.Namespace) -> TraceSet:
    """Write and record as the command line says.

    Raises:
        UserError: If the zoo, its target or its traces do not work.
    """
    if options.tokens < 1 or options.limit < 1:
        raise UserError(f"--tokens and --limit must be at least 1, got {options.tokens} and {options.limit}")
    zoo = Zoo.load(options.zoo)
    folder = resolve_first(zoo.target.sources)
    target = load_target(str(folder))
    source = zoo.folder / "traces" / f"{options.split}.parquet"
    singles = [text for text in read_corpus(source, zoo.target.fingerprint) if text.prompt.kind == "single"]
    texts = longer(target, limited(singles, options.limit), options.tokens, options.progress)
    drafts = read_drafts(zoo.folder / DRAFTS, zoo.target.fingerprint, folder)
    embed = target.model.get_input_embeddings()
    recorder = Recorder(zoo.target.fingerprint, embed, drafts, target.eos_ids, workers=options.workers)
    return recorder.record(texts, options.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.zoo.lengthen",
        description="Let the target answer a zoo's prompts at length, and record every draft along the answers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo")
    add("--split", default="heldout", choices=("train", "heldout"), help="whose prompts")
    add("--limit", type=int, default=24, help="most prompts, evenly over domains")
    add("--tokens", type=int, default=1024, help="most tokens of an answer")
    add("--out", type=Path, required=True, help="trace file to write")
    add("--workers", type=int, default=os.cpu_count() or 1, help="drafts recorded at once")
    add("--progress", action=argparse.BooleanOptionalAction, default=True, help="progress bars")
    try:
        traces = lengthen(parser.parse_args(arguments))
    except UserError as error:
        print(f"lengthen: {error}", file=sys.stderr)
        return 2
    lengths = sorted(len(trace.output_ids) for trace in traces.traces)
    print(f"{len(lengths)} texts of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
