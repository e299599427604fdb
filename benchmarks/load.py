"""Does the server stay what it was? Many requests from several clients over a long time, watched from outside.

    python -m benchmarks.load --bundle DIR [--requests 1000] [--clients 8] [--minutes 30] [--out FILE]

Starts ``specpilot serve`` and asks it mixed requests with the official ``openai`` client, spread over at least so many
minutes. Before and after, the same questions are asked (see ``benchmarks.probes``). Then the server is killed as by
``kill -9`` and started again on the same folder of stored KV. Promises:

    served        every request got an answer; 429 with Retry-After is no failure, its client comes back
    same_text     the same greedy question had the same answer, first, last, in between, and behind the restart
    same_guesses  drafts guessed as well for the same question, first and last
    flat          memory did not grow after the warm-up
    restarted     killed and started again, it serves

Exit status: 0 = kept, 1 = broken, 2 = it could not run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from openai import DefaultHttpxClient, OpenAI, OpenAIError
from tqdm import tqdm

from benchmarks import probes
from benchmarks.clients import PATIENCE_S, Client, Tally, ask_all
from benchmarks.load_report import FIRST, LAST, RESTARTED, Observed, Options, described, summary
from benchmarks.mixture import Ask, asks, prompts_by_domain
from benchmarks.probes import Probe
from benchmarks.resident import MemoryLog
from benchmarks.serving import Serving, serving
from runtime.errors import UserError
from runtime.files import write_json

ASKINGS = 2
"""How often every probe is asked at a time: drafts may still have to be loaded for the first."""
WORDS_PER_TOKEN = 0.25
"""A chat is begun anew when its words are this share of the context, so that it never passes it."""


def run(options: Options, progress: bool) -> Observed:
    """Start, ask, kill, start again."""
    serve = ("--kv-folder", str(options.kv_folder), "--queue", str(options.queue), *options.serve)
    with serving(options.bundle, serve, options.log) as server:
        words = int(server.state()["context_tokens"] * WORDS_PER_TOKEN)
        prompts = prompts_by_domain(words)
        questions = [of_domain[len(of_domain) // 2] for of_domain in prompts.values()]
        first = ask_probes(server, questions)
        seen = load(server, options, list(islice(asks(prompts, options.seed), options.requests)), words, progress)
        seen.probes[FIRST] = first
        try:
            seen.probes[LAST] = ask_probes(server, questions)
            seen.metrics = server.metrics()
        except (OpenAIError, OSError) as error:
            seen.tally.failures.append(f"behind the load: {type(error).__name__}: {error}")
        server.kill()
    with serving(options.bundle, serve, options.log) as server:
        seen.kv_disk_bytes = int(server.state()["memory"]["kv_disk_bytes"])
        seen.probes[RESTARTED] = ask_probes(server, questions)
    return seen


def load(server: Serving, options: Options, found: Sequence[Ask], words: int, progress: bool) -> Observed:
    """All requests, while the server's memory is read."""
    tally = Tally()
    clients = [Client(server.url, server.model, tally, words) for _ in range(options.clients)]
    with (
        MemoryLog(server.process.pid, options.minutes * 60) as memory,
        tqdm(total=len(found), unit="request", disable=not progress) as bar,
    ):
        ask_all(clients, found, options.minutes * 60, bar.update)
    for client in clients:
        client.close()
    return Observed(tally, memory.samples, {})


def ask_probes(server: Serving, questions: Sequence[str]) -> list[Probe]:
    """Every question, some times."""
    http = DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http) as api:
        return [probes.ask(api, server.model, question) for _ in range(ASKINGS) for question in questions]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="folder of the bundle")
    add("--requests", type=int, default=1000, help="requests in all (default: 1000)")
    add("--clients", type=int, default=8, help="clients that ask at the same time (default: 8)")
    add("--minutes", type=float, default=30, help="least time that they are spread over (default: 30)")
    add("--seed", type=int, default=0, help="what is asked (default: 0)")
    add("--queue", type=int, default=4, help="requests that may wait; below the clients, so that some hear 429")
    add("--kv-folder", type=Path, default=Path("outputs/load-kv"), help="where the server keeps KV")
    add("--serve", action="append", default=[], metavar="OPTION", help="option of specpilot serve: --serve=--threads=1")
    add("--log", type=Path, default=Path("outputs/load-server.log"), help="where the server's messages go")
    add("--out", type=Path, default=Path("outputs/load.json"), help="report to write")
    add("--no-progress", action="store_true", help="no progress bar")
    values: dict[str, Any] = vars(parser.parse_args(arguments))
    out, progress, serve = values.pop("out"), not values.pop("no_progress"), tuple(values.pop("serve"))
    options = Options(**values, serve=serve)
    try:
        report = described(options, run(options, progress))
    except UserError as error:
        print(f"benchmarks.load: {error}", file=sys.stderr)
        return 2
    write_json(out, report)
    print(summary(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
