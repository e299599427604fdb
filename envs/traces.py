"""Traces: what the target wrote for a prompt and, draft by draft, whether the draft would have said the same.

A trace is exact, independent of the hardware and of any policy, and recorded once a model pair (``envs.record``). On
disk it is one Parquet file, one row a prompt. Columns: the fields of ``Trace`` and for every draft ``<name>``

    <name>.match        list<bool>          one an output token
    <name>.confidence   list<uint16>        one an output token, coded (see ``envs.trace_code``)
    <name>.run_on       list<list<uint16>>  one list an output token, coded; empty where the draft matches

The file's metadata (strings) says ``specpilot.schema``, ``specpilot.target`` (fingerprint), ``specpilot.drafts``
(JSON: name and SHA-256 of each draft file) and ``specpilot.eos_ids`` (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from envs.trace_code import Codes, decode
from runtime.errors import UserError
from runtime.files import written_whole

TRACE_SCHEMA = "1"
RUN_ON = 7
"""Most tokens a draft is followed behind its own wrong guess: the longest gamma, less the wrong guess itself."""


@dataclass(frozen=True)
class DraftTrace:
    """What one draft would have said along one text of L tokens.

    Entry i is its greedy guess for ``output_ids[i]``, given the prompt and ``output_ids[:i]``. Where that is wrong,
    the draft goes on by itself from its own wrong token; those confidences are entries ``start[i]:start[i + 1]`` of
    ``run_on``. Fewer than ``RUN_ON`` of them mean that it guessed an end-of-text token there and stopped.

    Attributes:
        match: Whether the guess is right, bool, shape (L,).
        confidence: Raw top-1 probability over the draft's own vocabulary, coded, shape (L,).
        run_on: Confidences behind wrong guesses, coded, shape (start[L],).
        start: Where the run-on of each position begins, int32, shape (L + 1,).
    """

    match: npt.NDArray[np.bool_]
    confidence: Codes
    run_on: Codes
    start: npt.NDArray[np.int32]

    @property
    def probability(self) -> npt.NDArray[np.float64]:
        """Raw top-1 probabilities, shape (L,)."""
        return decode(self.confidence)


@dataclass(frozen=True)
class Trace:
    """One prompt, what the target wrote, and what the drafts would have said.

    Attributes:
        prompt_id: Unique name of the prompt.
        domain: Its domain; controllers never see it.
        split: ``train`` or ``heldout``.
        kind: ``single``, ``rag`` or ``chat``.
        group: Prompts of one group share a document or a conversation.
        turn: Question of a document or turn of a conversation.
        prompt_ids: Token ids.
        output_ids: Token ids, at least one; an end-of-text token is the last or absent.
        drafts: By draft, in the order of ``TraceSet.drafts``.
    """

    prompt_id: str
    domain: str
    split: str
    kind: str
    group: str
    turn: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    drafts: tuple[DraftTrace, ...]


@dataclass(frozen=True)
class DraftRef:
    """The draft file a column was recorded from. ``sha256`` is of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True)
class TraceSet:
    """Traces of one target.

    Attributes:
        target: Fingerprint of the target's weights.
        drafts: The drafts, in column order.
        eos_ids: Tokens that end a text.
        traces: One a prompt.
    """

    target: str
    drafts: tuple[DraftRef, ...]
    eos_ids: frozenset[int]
    traces: tuple[Trace, ...]

    def split(self, name: str) -> tuple[Trace, ...]:
        """The traces of one split.

        Raises:
            UserError: If there is none.
        """
        chosen = tuple(trace for trace in self.traces if trace.split == name)
        if not chosen:
            known = ", ".join(sorted({trace.split for trace in self.traces})) or "nothing"
            raise UserError(f"the traces hold no split '{name}', only {known}: record it with `--splits {name}`")
        return chosen

    def column(self, draft: str) -> int:
        """Index of a draft in ``Trace.drafts``.

        Raises:
            UserError: If it was not recorded.
        """
        names = [ref.name for ref in self.drafts]
        if draft not in names:
            raise UserError(f"the traces know the drafts {', '.join(names)}, not '{draft}': record them for this zoo")
        return names.index(draft)

    def save(self, path: Path) -> None:
        """Write the file, aside first."""
        metadata = {
            "specpilot.schema": TRACE_SCHEMA,
            "specpilot.target": self.target,
            "specpilot.drafts": json.dumps([[ref.name, ref.sha256] for ref in self.drafts]),
            "specpilot.eos_ids": json.dumps(sorted(self.eos_ids)),
        }
        columns: dict[str, Any] = {
            name: pa.array([getattr(trace, name) for trace in self.traces], type=kind) for name, kind in _FIELDS.items()
        }
        for index, ref in enumerate(self.drafts):
            column = [trace.drafts[index] for trace in self.traces]
            starts = [np.split(d.run_on, d.start[1:-1]) for d in column]
            columns[f"{ref.name}.match"] = pa.array([d.match for d in column], type=pa.list_(pa.bool_()))
            columns[f"{ref.name}.confidence"] = pa.array([d.confidence for d in column], type=_CODES)
            columns[f"{ref.name}.run_on"] = pa.array(starts, type=pa.list_(_CODES))
        table = pa.table(columns).replace_schema_metadata(metadata)
        with written_whole(path) as aside:
            pq.write_table(table, aside, compression="zstd")

    @classmethod
    def load(cls, path: Path, target: str | None = None) -> TraceSet:
        """Read a trace file.

        Args:
            path: The file.
            target: Fingerprint the traces must be of; None = any.

        Raises:
            UserError: If the file is missing, damaged, of another schema or of another target.
        """
        if not path.is_file():
            raise UserError(f"no trace file at {path}: check the path, or record one with `python -m envs.record`")
        try:
            table = pq.read_table(path).combine_chunks()
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: not a readable trace file ({error}): record it again") from None
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        schema = metadata.get("specpilot.schema", "none")
        if schema != TRACE_SCHEMA:
            raise UserError(f"{path}: expected a trace file of schema {TRACE_SCHEMA}, got {schema}: record it again")
        try:
            found = metadata["specpilot.target"]
            drafts = tuple(DraftRef(*pair) for pair in json.loads(metadata["specpilot.drafts"]))
            eos_ids = frozenset(map(int, json.loads(metadata["specpilot.eos_ids"])))
            traces = _traces(table, drafts)
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{path}: a damaged trace file ({error}): record it again") from None
        if target is not None and found != target:
            raise UserError(
                f"{path}: expected traces of target {target[:12]}…, got traces of {found[:12]}…: "
                "record them with this target"
            )
        return cls(found, drafts, eos_ids, traces)


_CODES = pa.list_(pa.uint16())
_TOKENS = pa.list_(pa.int32())
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("prompt_id", "domain", "split", "kind", "group"), pa.string()),
    "turn": pa.int32(),
    "prompt_ids": _TOKENS,
    "output_ids": _TOKENS,
}


def concatenated(parts: Sequence[TraceSet]) -> TraceSet:
    """One set of several of the same target and drafts.

    Raises:
        ValueError: If they differ in target, drafts or end-of-text tokens, or there is none.
    """
    heads = {(part.target, part.drafts, part.eos_ids) for part in parts}
    if len(heads) != 1:
        raise ValueError(f"expected parts of one target and the same drafts, got {len(heads)} kinds of parts")
    first = parts[0]
    return TraceSet(first.target, first.drafts, first.eos_ids, tuple(t for part in parts for t in part.traces))


def _traces(table: Any, refs: tuple[DraftRef, ...]) -> tuple[Trace, ...]:
    fields = [table[name].to_pylist() for name in _FIELDS]
    drafts = [_draft_column(table, ref.name) for ref in refs]
    traces = []
    for row, values in enumerate(zip(*fields, strict=True)):
        names = dict(zip(_FIELDS, values, strict=True))
        names |= {name: tuple(names[name]) for name in ("prompt_ids", "output_ids")}
        trace = Trace(**names, drafts=tuple(column[row] for column in drafts))
        length = len(trace.output_ids)
        if not trace.prompt_ids or not length or any(_length(draft) != length for draft in trace.drafts):
            raise ValueError(f"prompt {trace.prompt_id}: {length} tokens and as many guesses of every draft expected")
        traces.append(trace)
    return tuple(traces)


def _length(draft: DraftTrace) -> int:
    """Positions of a draft's trace; -1 if its parts do not fit."""
    lengths = {len(draft.match), len(draft.confidence), len(draft.start) - 1}
    return lengths.pop() if len(lengths) == 1 else -1


def _draft_column(table: Any, name: str) -> list[DraftTrace]:
    match, confidence, run_on = (_rows(table, f"{name}.{part}") for part in ("match", "confidence", "run_on"))
    column = []
    for row in range(len(table)):
        inner = run_on[row]
        offsets = inner.offsets.to_numpy()
        column.append(
            DraftTrace(
                match[row].to_numpy(zero_copy_only=False).astype(np.bool_),
                confidence[row].to_numpy().astype(np.uint16),
                inner.values.to_numpy()[offsets[0] : offsets[-1]].astype(np.uint16),
                (offsets - offsets[0]).astype(np.int32),
            )
        )
    return column


def _rows(table: Any, name: str) -> list[Any]:
    """The inner arrays of a list column."""
    column = table[name]
    return [scalar.values for chunk in column.chunks for scalar in chunk]
