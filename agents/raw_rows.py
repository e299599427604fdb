"""The rows behind a report, one a request, as a Parquet file: ``runs.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agents.serving import StreamResult
from envs.workload import Stream
from runtime.files import written_whole

RUNS_SCHEMA = "1"
RUNS = "runs.parquet"
COLUMNS = pa.schema(
    [
        ("suite", pa.string()),
        ("controller", pa.string()),
        ("seed", pa.int64()),
        ("stream", pa.int32()),
        ("request", pa.int32()),
        ("prompt_id", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),
        ("ttft_s", pa.float64()),
        ("live", pa.bool_()),
    ]
)


def write_runs(path: Path, suite: str, results: Sequence[StreamResult], streams: Sequence[Stream], live: bool) -> None:
    """Write one row for every request that was served; computed bounds have none.

    Args:
        path: The file; it appears whole.
        suite: Name of the suite.
        results: Of all controllers.
        streams: The streams that ``StreamResult.stream`` counts.
        live: Whether times are of the wall clock.
    """
    rows: list[dict[str, Any]] = [
        {
            "suite": suite,
            "controller": result.controller,
            "seed": result.seed,
            "stream": result.stream,
            "request": number,
            "prompt_id": item.request.request_id,
            "prompt_tokens": len(item.request.prompt_ids),
            "tokens": tokens,
            "seconds": seconds,
            "ttft_s": ttft_s,
            "live": live,
        }
        for result in results
        for number, (item, tokens, seconds, ttft_s) in enumerate(
            zip(streams[result.stream], result.request_tokens, result.request_s, result.ttft_s, strict=False)
        )
    ]
    table = pa.Table.from_pylist(rows, schema=COLUMNS).replace_schema_metadata({"specpilot.schema": RUNS_SCHEMA})
    with written_whole(path) as aside:
        pq.write_table(table, aside, compression="zstd")
