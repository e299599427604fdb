"""Record traces on a cluster: ``python -m agents.cluster.record --pieces 8`` and the options of ``envs.record``.

The texts are cut into ranges, each range is a job that runs ``envs.record``, and their traces are put together in the
order of the texts: the file is the one that a single machine writes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.cluster.pool import run_jobs
from agents.cluster.status import FAILED, print_statuses
from agents.cluster.work import Job
from envs.record import add_options, existing_corpus, limited, read_corpus
from envs.traces import TraceSet, concatenated
from envs.zoo.plan import texts_sha256
from envs.zoo.target import load_target
from envs.zoo.texts import Text, write_texts
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.sources import resolve_model
from runtime.errors import UserError


def record_on_cluster(options: argparse.Namespace) -> TraceSet:
    """Record as the command line says.

    Raises:
        UserError: If the corpus, the target, the cluster or a piece does not work.
    """
    texts, target = _texts(options)
    out = options.out.absolute()
    folder = out.with_name(f".{out.name}.{texts_sha256(texts)[:16]}.pieces")
    jobs = [_job(options, folder / f"{index:03d}", piece) for index, piece in enumerate(cut(texts, options.pieces))]
    statuses = run_jobs(jobs, max_retries=options.max_retries)
    if any(status.state == FAILED for status in statuses):
        print_statuses(statuses)
        raise UserError(f"some pieces failed: see above, and {folder}; run the same command again to go on")
    traces = concatenated([TraceSet.load(job.folder / "traces.parquet", target) for job in jobs])
    traces.save(out)
    shutil.rmtree(folder)
    return traces


def cut(texts: Sequence[Text], pieces: int) -> list[Sequence[Text]]:
    """Consecutive ranges that differ by one text at most in size; none is empty.

    Raises:
        UserError: If ``pieces`` is below 1.
    """
    if pieces < 1:
        raise UserError(f"--pieces: expected at least 1, got {pieces}")
    count = min(pieces, len(texts))
    ends = [len(texts) * (index + 1) // count for index in range(count)]
    return [texts[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _texts(options: argparse.Namespace) -> tuple[list[Text], str]:
    """What ``envs.record`` would record, and the target's fingerprint."""
    for path in options.corpus:
        existing_corpus(path)
    target = target_fingerprint(load_target(str(resolve_model(options.target))).model)
    splits = [name.strip() for name in options.splits.split(",")]
    texts = [text for path in options.corpus for text in read_corpus(path, target) if text.prompt.split in splits]
    if missing := sorted(set(splits) - {text.prompt.split for text in texts}):
        raise UserError(f"no text of the splits {', '.join(missing)}: name splits that the corpus has")
    return (limited(texts, options.limit) if options.limit else texts), target


def _job(options: argparse.Namespace, folder: Path, texts: Sequence[Text]) -> Job:
    corpus = folder / "texts.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(corpus, texts)
    arguments = {
        "--target": options.target,
        "--drafts": options.drafts.absolute(),
        "--corpus": corpus,
        "--splits": ",".join(sorted({text.prompt.split for text in texts})),
        "--out": folder / "traces.parquet",
        "--workers": options.cpus,
    }
    line = [str(word) for pair in arguments.items() for word in pair]
    name = f"{texts[0].prompt.prompt_id} … {texts[-1].prompt.prompt_id}"
    return Job(name, folder, ("-m", "envs.record", *line), cwd=Path.cwd(), cpus=options.cpus)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agents.cluster.record",
        description="Record traces on a Ray cluster (RAY_ADDRESS; without it, this machine). Safe to run again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_options(parser)
    add = parser.add_argument
    add("--pieces", type=int, default=8, help="ranges of texts, each a job")
    add("--cpus", type=int, default=1, help="cores of a job: drafts recorded at once")
    add("--max-retries", type=int, default=3, help="attempts after the first one, of jobs that were killed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        traces = record_on_cluster(options)
    except UserError as error:
        print(f"cluster.record: {error}", file=sys.stderr)
        return 2
    print(f"{len(traces.traces)} texts: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
