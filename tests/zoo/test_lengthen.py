"""Longer answers: the same prompts, texts that begin as the recorded ones, drafts recorded along them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.traces import TraceSet
from envs.zoo.lengthen import main
from tests.tiny_zoo import TinyZoo


def test_answers_go_on_where_the_recorded_ones_were_cut(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    out = tmp_path / "long.parquet"
    arguments = ["--zoo", str(tiny_zoo.zoo.folder), "--tokens", "60", "--limit", "4", "--out", str(out)]
    assert main([*arguments, "--no-progress", "--workers", "1"]) == 0
    fingerprint = tiny_zoo.zoo.target.fingerprint
    short = {t.prompt_ids: t for t in TraceSet.load(tiny_zoo.zoo.folder / "traces" / "heldout.parquet").traces}
    traces = TraceSet.load(out, fingerprint)
    assert len(traces.traces) == 4
    assert {trace.domain for trace in traces.traces} == {"one", "two"}
    assert [draft.name for draft in traces.drafts] == ["one", "two"]
    for trace in traces.traces:
        before = short[trace.prompt_ids].output_ids
        assert trace.output_ids[: len(before)] == before
        assert len(trace.output_ids) == 60 or trace.output_ids[-1] in traces.eos_ids
        assert all(len(draft.match) == len(trace.output_ids) for draft in trace.drafts)
    assert max(len(trace.output_ids) for trace in traces.traces) > 24


def test_nonsense_is_refused(tiny_zoo: TinyZoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "long.parquet"
    assert main(["--zoo", str(tiny_zoo.zoo.folder), "--tokens", "0", "--out", str(out)]) == 2
    assert "--tokens and --limit must be at least 1, got 0 and 24" in capsys.readouterr().err
    assert not out.exists()
