"""Trace files: what is written is read, and what is no good is refused with one clear sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from envs.trace_code import calibrated_table, decode, encode
from envs.traces import TraceSet, concatenated
from runtime.errors import UserError
from tests.replay.scripted import make_trace, make_traces


def same(one: TraceSet, other: TraceSet) -> bool:
    """Equal in every field, arrays included."""
    return repr(dataclasses.asdict(one)) == repr(dataclasses.asdict(other))


@pytest.fixture
def traces() -> TraceSet:
    return make_traces([make_trace(seed) for seed in range(4)])


def test_a_file_holds_what_was_written(traces: TraceSet, tmp_path: Path) -> None:
    traces.save(tmp_path / "traces.parquet")
    read = TraceSet.load(tmp_path / "traces.parquet", target="fingerprint")
    assert same(read, traces)
    assert [file.name for file in tmp_path.iterdir()] == ["traces.parquet"]
    assert read.traces[0].drafts[0].confidence.dtype == np.uint16


def test_a_confidence_is_off_by_less_than_a_ten_thousandth() -> None:
    p = np.concatenate([np.linspace(0, 1, 20_001), 1 - np.logspace(-9, -1, 100), np.logspace(-9, -1, 100)])
    assert np.abs(decode(encode(p)) - p).max() < 1.1e-4
    assert (np.diff(encode(np.linspace(0, 1, 1001)).astype(int)) >= 0).all()


def test_a_table_calibrates_every_code() -> None:
    code = int(encode(0.8))
    assert calibrated_table(1.0, 0.0)[code] == pytest.approx(0.8, abs=1e-4)
    assert calibrated_table(0.5, -1.0)[code] == pytest.approx(1 / (1 + np.exp(-(0.5 * np.log(4) - 1))), abs=1e-4)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no trace file at .*record one with"):
        TraceSet.load(tmp_path / "none.parquet")


@pytest.mark.parametrize("kept", [0, 4, 200, -9])
def test_a_cut_file_is_refused(traces: TraceSet, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "traces.parquet"
    traces.save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"not a readable trace file .*record it again"):
        TraceSet.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("specpilot.schema", "0", "expected a trace file of schema 1, got 0"),
        ("specpilot.drafts", "[", "a damaged trace file"),
        ("specpilot.drafts", '[["story", "x"]]', "a damaged trace file"),
        ("specpilot.eos_ids", '["a"]', "a damaged trace file"),
    ],
)
def test_a_file_with_wrong_metadata_is_refused(
    traces: TraceSet, tmp_path: Path, key: str, value: str, message: str
) -> None:
    path = tmp_path / "traces.parquet"
    traces.save(path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, key.encode(): value.encode()}), path)
    with pytest.raises(UserError, match=message):
        TraceSet.load(path)


def test_parts_that_do_not_fit_are_refused(traces: TraceSet, tmp_path: Path) -> None:
    short = dataclasses.replace(traces.traces[0], output_ids=traces.traces[0].output_ids[:-1])
    path = tmp_path / "traces.parquet"
    dataclasses.replace(traces, traces=(short,)).save(path)
    with pytest.raises(UserError, match=r"damaged trace file .*as many guesses"):
        TraceSet.load(path)


def test_traces_of_another_target_are_refused(traces: TraceSet, tmp_path: Path) -> None:
    traces.save(tmp_path / "traces.parquet")
    with pytest.raises(UserError, match="expected traces of target other"):
        TraceSet.load(tmp_path / "traces.parquet", target="other")


def test_an_unknown_split_or_draft_is_refused(traces: TraceSet) -> None:
    with pytest.raises(UserError, match="hold no split 'heldout', only train"):
        traces.split("heldout")
    with pytest.raises(UserError, match="know the drafts code, math, not 'story'"):
        traces.column("story")


def test_parts_make_one_set(traces: TraceSet) -> None:
    halves = [dataclasses.replace(traces, traces=traces.traces[cut]) for cut in (slice(0, 1), slice(1, None))]
    assert same(concatenated(halves), traces)
    with pytest.raises(ValueError, match="the same drafts"):
        concatenated([traces, dataclasses.replace(traces, target="other")])
