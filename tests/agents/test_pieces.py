"""A live evaluation in pieces, on a tiny real model: kept, resumed, done again only where the work differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agents.agreement import agreements, order_agreement
from agents.evaluation import Factory
from agents.pieces import serve_in_pieces
from agents.pipeline import live_world, open_target
from agents.raw_rows import RUNS_SCHEMA, write_runs
from agents.serving import StreamResult
from agents.setup import Setting, prepare
from envs.live import LiveWorld
from runtime.control.static import StaticController, plain_controller
from runtime.errors import UserError
from tests.tiny_zoo import TinyZoo

FACTORIES: dict[str, Factory] = {
    "plain": lambda: plain_controller(3),
    "static:one:2": lambda: StaticController(3, 0, 2, name="static:one:2"),
}


@pytest.fixture
def setting(tiny_zoo: TinyZoo) -> Setting:
    return prepare(tiny_zoo.config("workload.requests=2"))


@pytest.fixture
def live(tiny_zoo: TinyZoo, setting: Setting) -> Iterator[LiveWorld]:
    config = tiny_zoo.config("workload.requests=2")
    world = live_world(config, setting, open_target(config, setting), "heldout")
    yield world
    world.close()


def test_pieces_are_kept_and_not_done_again(live: LiveWorld, setting: Setting, tmp_path: Path) -> None:
    streams = live.streams(0, 2)
    first = serve_in_pieces(FACTORIES, streams, live, tmp_path / "pieces")
    files = sorted((tmp_path / "pieces").glob("*.json"))
    assert [file.name for file in files] == [
        f"{index:03d}-{name}.json" for index in range(2) for name in ("plain", "static-one-2")
    ]
    files[1].unlink()
    written_ns = {file: file.stat().st_mtime_ns for file in files if file.exists()}
    second = serve_in_pieces(FACTORIES, streams, live, tmp_path / "pieces")
    assert {file: file.stat().st_mtime_ns for file in written_ns} == written_ns
    for name in FACTORIES:
        assert [piece.texts for piece in first[name]] == [piece.texts for piece in second[name]]
        assert all(piece.result.identical for piece in second[name])
    assert first["plain"] == second["plain"]
    assert agreements(second, streams, setting.heldout.session)[1].live_s == pytest.approx(
        sum(piece.result.seconds for piece in second["static:one:2"])
    )


def test_other_settings_are_done_again(live: LiveWorld, tmp_path: Path) -> None:
    streams, plain = live.streams(0, 1), {"plain": FACTORIES["plain"]}
    serve_in_pieces(plain, streams, live, tmp_path, marks={"plain": "a"})
    key = json.loads((tmp_path / "000-plain.json").read_text())["key"]
    serve_in_pieces(plain, streams, live, tmp_path, marks={"plain": "b"})
    assert json.loads((tmp_path / "000-plain.json").read_text())["key"] != key


def test_a_differing_text_is_seen(live: LiveWorld, tmp_path: Path) -> None:
    streams = live.streams(0, 1)
    serve_in_pieces(FACTORIES, streams, live, tmp_path)
    path = tmp_path / "000-static-one-2.json"
    data = json.loads(path.read_text())
    data["texts"][0][0] += 1
    path.write_text(json.dumps(data))
    found = serve_in_pieces(FACTORIES, streams, live, tmp_path)
    assert [found[name][0].result.identical for name in FACTORIES] == [True, False]


def test_without_the_reference_nothing_is_run(live: LiveWorld, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected 'plain' among them"):
        serve_in_pieces({"static:one:2": FACTORIES["static:one:2"]}, live.streams(0, 1), live, tmp_path / "pieces")


def test_raw_rows_hold_every_request(live: LiveWorld, tmp_path: Path) -> None:
    streams = live.streams(0, 2)
    pieces = serve_in_pieces(FACTORIES, streams, live, tmp_path / "pieces")
    results = [piece.result for name in FACTORIES for piece in pieces[name]]
    write_runs(tmp_path / "runs.parquet", "tiny", results, streams, live=True)
    table = pq.read_table(tmp_path / "runs.parquet")
    assert table.schema.metadata[b"specpilot.schema"].decode() == RUNS_SCHEMA
    rows = table.to_pylist()
    assert len(rows) == len(FACTORIES) * sum(len(stream) for stream in streams)
    assert sum(row["tokens"] for row in rows) == sum(result.tokens for result in results)
    assert sum(row["seconds"] for row in rows) == pytest.approx(sum(result.seconds for result in results), rel=1e-2)
    assert {row["prompt_id"] for row in rows} == {item.request.request_id for stream in streams for item in stream}


def speeds(values: dict[str, float]) -> list[StreamResult]:
    return [StreamResult(name, 0, 0, 1, 100, 100 / value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("replayed", "tau"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 1.0),
        ({"a": 3.0, "b": 2.0, "c": 1.0}, -1.0),
        ({"a": 2.0, "b": 1.0, "c": 3.0}, 1 / 3),
        ({"a": 1.0, "b": 1.005, "c": 3.0}, 2 / 6**0.5),  # a and b are as good as tied
    ],
)
def test_order_agreement_is_kendalls_tau(replayed: dict[str, float], tau: float) -> None:
    assert order_agreement(speeds({"a": 1.0, "b": 2.0, "c": 3.0}), speeds(replayed)) == pytest.approx(tau)
