"""Live evaluation in pieces: one controller on one stream at a time, each kept: hours of runs can be broken off.

The controllers take turns on every stream, the first one changes from stream to stream: a machine that slows down slows
all of them down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agents.agreement import RecordingController
from agents.evaluation import Factory, StreamResult, Texts, serve
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
    names, controllers = list(factories), {name: make() for name, make in factories.items()}
    found: dict[str, list[Piece]] = {name: [] for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    if any(not _path(folder, index, name).is_file() for index in range(len(streams)) for name in names):
        _warm_up(factories, streams[0], live)
    try:
        with tqdm(total=len(names) * len(streams), desc="live", unit="streams", disable=not progress) as bar:
            for index, stream in enumerate(streams):
                turn = index % len(names)
                for name in (*names[turn:], *names[:turn]):
                    bar.set_postfix_str(name)
                    mark = (marks or {}).get(name, "")
                    found[name].append(_piece(controllers[name], (name, mark), stream, index, live, folder, seed))
                    bar.update()
                expected = found[reference][-1].texts
                for pieces in found.values():
                    same = pieces[-1].texts == expected
                    pieces[-1] = replace(pieces[-1], result=replace(pieces[-1].result, identical=same))
    finally:
        live.close()
    return found


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


def _piece(
    controller: Controller,
    marked: tuple[str, str],
    stream: Stream,
    index: int,
    live: LiveWorld,
    folder: Path,
    seed: int,
) -> Piece:
    name = marked[0]
    asked = [[item.request.request_id, item.request.max_new_tokens] for item in stream]
    made_of = [marked, seed, live.models.zoo.manifest(), asdict(live.config), asked]
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    path = _path(folder, index, name)
    if path.is_file() and (kept := Piece.load(path, key)) is not None:
        return kept
    recorder = RecordingController(controller)
    result, texts = serve(recorder, stream, live.session(), name, seed, index)
    decisions = tuple(tuple(request) for request in recorder.streams[-1])
    piece = Piece(result, texts, decisions)
    piece.save(path, key)
    return piece
