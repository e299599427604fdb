"""Live evaluation in pieces, one controller on one stream each, all kept: hours of runs can be broken off.

All controllers answer a request of a stream before any goes on to the next, each on a session and in memory of its own,
in an order that rotates: a machine that slows down slows all of them down. So the drafts and the stored KV of every
controller are in memory together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agents.agreement import RecordingController
from agents.evaluation import Factory
from agents.serving import Serving, StreamResult, Texts, answer_in_turn, serve
from envs.live import LiveWorld
from envs.workload import Stream
from runtime.control.base import Controller
from runtime.core import Decision, StopRule, Victim
from runtime.errors import UserError
from runtime.files import read_json, write_json

PIECE_SCHEMA = 1


@dataclass(frozen=True)
class Piece:
    """One controller on one stream.

    Attributes:
        result: What it did; ``identical`` is judged when all pieces of the stream are there.
        texts: Token ids of every answer.
        decisions: Decisions as carried out, by request.
    """

    result: StreamResult
    texts: Texts
    decisions: tuple[tuple[Decision, ...], ...]

    def save(self, path: Path, key: str) -> None:
        """Write as JSON, aside first."""
        write_json(
            path,
            {
                "schema": PIECE_SCHEMA,
                "key": key,
                "result": asdict(self.result),
                "texts": self.texts,
                "decisions": self.decisions,
            },
        )

    @classmethod
    def load(cls, path: Path, key: str | None = None) -> Piece | None:
        """Read a piece; None if it is of other work than ``key`` says (None = any)."""
        data = read_json(path, "piece of a live evaluation", PIECE_SCHEMA)
        if key is not None and data["key"] != key:
            return None
        result: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data["result"].items()
        }
        decisions = tuple(tuple(_decision(values) for values in request) for request in data["decisions"])
        return cls(StreamResult(**result), tuple(tuple(text) for text in data["texts"]), decisions)


def _decision(values: Sequence[Any]) -> Decision:
    decision = Decision(*values)
    return decision._replace(victim=Victim(decision.victim), rule=StopRule(decision.rule))


def serve_in_pieces(
    factories: Mapping[str, Factory],
    streams: Sequence[Stream],
    live: LiveWorld,
    folder: Path,
    seed: int = 0,
    marks: Mapping[str, str] | None = None,
    reference: str = "plain",
    progress: bool = False,
) -> dict[str, list[Piece]]:
    """Every controller on every stream of the real models; what is in ``folder`` already is not done again.

    Args:
        factories: Controllers by name in the report.
        streams: The streams.
        live: The real models; closed at the end.
        folder: Where pieces are kept.
        seed: Noted in the results.
        marks: What tells a controller from another of the same name: its settings, or the hash of its policy. Pieces
            with another mark are done again.
        reference: Controller whose texts the others' must equal.
        progress: Whether to show a progress bar.

    Raises:
        UserError: If ``reference`` is not among the controllers.
    """
    if reference not in factories:
        raise UserError(f"suite.controllers: expected '{reference}' among them, got {', '.join(factories)}")
    controllers = {name: make() for name, make in factories.items()}
    found: dict[str, list[Piece]] = {name: [] for name in controllers}
    folder.mkdir(parents=True, exist_ok=True)
    if any(not _path(folder, index, name).is_file() for index in range(len(streams)) for name in controllers):
        _warm_up(factories, streams[0], live)
    live.close()
    for index, stream in enumerate(tqdm(streams, desc="live", unit="streams", disable=not progress)):
        keys = {name: _key((name, (marks or {}).get(name, "")), seed, live, stream) for name in controllers}
        kept = {name: _kept(_path(folder, index, name), key) for name, key in keys.items()}
        missing = {name: controllers[name] for name, piece in kept.items() if piece is None}
        served = _serve_in_turn(missing, stream, index, live, seed)
        for name, piece in served.items():
            piece.save(_path(folder, index, name), keys[name])
        whole = {name: piece or served[name] for name, piece in kept.items()}
        for name, piece in whole.items():
            same = piece.texts == whole[reference].texts
            found[name].append(replace(piece, result=replace(piece.result, identical=same)))
    return found


def _serve_in_turn(
    controllers: Mapping[str, Controller], stream: Stream, index: int, live: LiveWorld, seed: int
) -> dict[str, Piece]:
    """All controllers on one stream, request by request."""
    recorders = {name: RecordingController(controller) for name, controller in controllers.items()}
    with ExitStack() as opened:
        servings = [
            Serving(recorder, stream, opened.enter_context(live.opened()), name, seed, index)
            for name, recorder in recorders.items()
        ]
        answer_in_turn(servings, len(stream), index)
        results = [serving.result() for serving in servings]
    decisions = [tuple(tuple(request) for request in recorder.streams[-1]) for recorder in recorders.values()]
    return {name: Piece(*each, done) for name, each, done in zip(recorders, results, decisions, strict=True)}


def _warm_up(factories: Mapping[str, Factory], stream: Stream, live: LiveWorld) -> None:
    """Serve one request under every controller, untimed: the first forward of every shape is slow."""
    for name, make in factories.items():
        serve(make(), stream[:1], live.session(), name)


def _path(folder: Path, index: int, name: str) -> Path:
    return folder / f"{index:03d}-{name.replace(':', '-')}.json"


def read_pieces(folder: Path) -> dict[str, list[Piece]]:
    """Every piece of a folder by controller, in the order of the streams; streams that are not whole are left out.

    Raises:
        UserError: If there is none, or one is damaged.
    """
    pieces = [Piece.load(path) for path in sorted(folder.glob("*.json"))]
    names = {piece.result.controller for piece in pieces if piece}
    found = {name: sorted((p for p in pieces if p and p.result.controller == name), key=_stream) for name in names}
    whole = set.intersection(*({_stream(p) for p in served} for served in found.values())) if found else set()
    if not whole:
        raise UserError(f"{folder}: expected pieces of a live evaluation, found no stream that all controllers served")
    return {name: [piece for piece in served if _stream(piece) in whole] for name, served in found.items()}


def _stream(piece: Piece) -> int:
    return piece.result.stream


def _key(marked: tuple[str, str], seed: int, live: LiveWorld, stream: Stream) -> str:
    asked = [[item.request.request_id, item.request.max_new_tokens] for item in stream]
    made_of = [marked, seed, live.models.zoo.manifest(), asdict(live.config), asked]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _kept(path: Path, key: str) -> Piece | None:
    return Piece.load(path, key) if path.is_file() else None
