"""Evaluation: every controller serves the same streams, each stream on a fresh session with empty memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tqdm import tqdm

from agents.bootstrap import Speeds
from agents.serving import StreamResult, Texts, serve
from agents.workers import over_all_cores
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.session import DecodeSession

Factory: TypeAlias = Callable[[], Controller]


def speeds(results: Sequence[StreamResult]) -> Speeds:
    """Tokens and seconds by stream, for the bootstrap."""
    return Speeds([result.tokens for result in results], [result.seconds for result in results])


def tokens_per_s(results: Sequence[StreamResult]) -> float:
    """Total tokens per second."""
    return sum(result.tokens for result in results) / sum(result.seconds for result in results)


def evaluate(
    factories: Mapping[str, Factory],
    streams: Sequence[Stream],
    make_session: Callable[[], DecodeSession],
    seed: int = 0,
    reference: str | None = None,
    progress: bool = False,
    workers: int = 1,
) -> list[StreamResult]:
    """Let every controller serve every stream.

    Args:
        factories: Controllers by name in the report; each is built once and serves the streams in order.
        streams: The streams.
        make_session: A fresh session with empty memory.
        seed: Noted in the results.
        reference: Controller whose texts the others' must equal, e.g. ``plain`` on real models; None = the texts must
            equal the traces'.
        progress: Whether to show a progress bar.
        workers: Processes that controllers are spread over; 0 = one for each core. Real models want one.

    Returns:
        By controller, then by stream.

    Raises:
        ValueError: If ``reference`` is not among the controllers, or there is one and several workers.
    """
    if reference is not None and (reference not in factories or workers != 1):
        raise ValueError(f"reference {reference!r}: expected one of {', '.join(factories)} and one worker")
    expected = [traced_texts(stream) for stream in streams] if reference is None else None
    names = sorted(factories, key=lambda name: name != reference)  # stable: the reference first
    found: dict[str, list[StreamResult]] = {}

    def judge(name: str) -> tuple[list[StreamResult], list[Texts]]:
        controller = factories[name]()
        pairs = [
            serve(controller, stream, make_session(), name, seed, index, expected[index] if expected else None)
            for index, stream in enumerate(streams)
        ]
        return [result for result, _ in pairs], [texts for _, texts in pairs]

    with tqdm(total=len(names), desc="evaluating", unit="controllers", disable=not progress) as bar:
        for index, (results, texts) in over_all_cores(judge, names, workers):
            found[names[index]] = results
            expected = texts if expected is None else expected
            bar.update()
    return [result for name in factories for result in found[name]]


def traced_texts(stream: Stream) -> Texts:
    """The texts that the traces hold, cut to what is asked for."""
    return tuple(item.trace.output_ids[: item.request.max_new_tokens] for item in stream)
