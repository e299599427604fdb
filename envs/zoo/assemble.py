"""Assemble a zoo: ``python -m envs.zoo.assemble``, behind ``envs.zoo.distill`` and ``envs.record``.

Takes a target, draft files and traces; fits calibration, expected acceptance and the topic predictor on the training
split; writes a folder that training and deployment read.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from envs.traces import Trace, TraceSet, concatenated
from envs.zoo.fit import calibrations, expected_acceptance, fit_calibration, fit_topic
from envs.zoo.target import Target, load_target
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.engine.draft_file import SUFFIX, opened_draft
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.sources import resolve_model
from runtime.errors import UserError
from runtime.files import sha256_file
from runtime.zoo import Zoo, ZooDraft, ZooTarget

LOOKUP = "lookup"
FP32_BYTES = 4


def lookup_evidence(traces: Sequence[Trace]) -> tuple[list[float], list[bool]]:
    """Raw confidence of the lookup draft's first guess along the texts, and whether it was right."""
    drafter = LookupDrafter()
    confidence, right = [], []
    for trace in traces:
        drafter.begin()
        tokens = [*trace.prompt_ids, trace.output_ids[0]]
        for token in trace.output_ids[1:]:
            proposal = drafter.propose(tokens, len(trace.prompt_ids), 1, 0.0, ())
            if proposal.tokens:
                confidence.append(proposal.confidence)
                right.append(proposal.tokens[0] == token)
            tokens.append(token)
    return confidence, right


def lookup_draft(traces: Sequence[Trace]) -> ZooDraft:
    """The draft without weights; its expected acceptance counts positions where it has no guess as wrong."""
    confidence, right = lookup_evidence(traces)
    positions = sum(len(trace.output_ids) - 1 for trace in traces)
    calibration = fit_calibration(np.array(confidence), np.array(right)) if right else (1.0, 0.0)
    return ZooDraft(LOOKUP, "", "", 0, 0, calibration, sum(right) / max(1, positions))


def model_drafts(folder: Path, traces: TraceSet, target_folder: Path | None = None) -> list[ZooDraft]:
    """The draft models, in the order of the traces; ``target_folder`` is for those made of the target's layers."""
    train = traces.split("train")
    calibrated, expected = calibrations(train, len(traces.drafts)), expected_acceptance(train, len(traces.drafts))
    drafts = []
    for index, ref in enumerate(traces.drafts):
        path = folder / f"{ref.name}{SUFFIX}"
        if sha256_file(path) != ref.sha256:
            raise UserError(f"{path}: not the file the traces were recorded from: record them again")
        with opened_draft(path, target_folder) as parts:
            config = parts.header.config
            weights = sum(math.prod(parts.shape(name)) for name in parts.names) * FP32_BYTES
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        kv_bytes = 2 * config["num_hidden_layers"] * heads * head_dim * FP32_BYTES
        drafts.append(
            ZooDraft(ref.name, f"drafts/{path.name}", ref.sha256, weights, kv_bytes, calibrated[index], expected[index])
        )
    return drafts


def zoo_target(target: Target, sources: tuple[str, ...]) -> ZooTarget:
    """Facts of the target."""
    config = target.model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * FP32_BYTES
    return ZooTarget(
        sources=sources,
        fingerprint=target_fingerprint(target.model),
        kv_bytes_per_token=kv_bytes,
        context_limit=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        eos_ids=tuple(sorted(target.eos_ids)),
    )


def assemble(
    name: str,
    target: Target,
    sources: tuple[str, ...],
    drafts: Path,
    traces: TraceSet,
    out: Path,
    target_folder: Path | None = None,
    lookup: bool = True,
) -> Zoo:
    """Fit, copy, and write the zoo's folder.

    Args:
        name: Name of the zoo.
        target: The target.
        sources: Where users get the target, tried in order.
        drafts: Folder of the draft files.
        traces: Traces of the train and heldout splits.
        out: The zoo's folder.
        target_folder: The target's folder, for drafts that are made of its layers.
        lookup: Whether the zoo gets the draft without weights, too.

    Raises:
        UserError: If drafts, traces and target do not belong together.
    """
    facts = zoo_target(target, sources)
    if traces.target != facts.fingerprint:
        raise UserError(f"the traces are of target {traces.target[:12]}…, this is {facts.fingerprint[:12]}…")
    train = traces.split("train")
    members = model_drafts(drafts, traces, target_folder) + ([lookup_draft(train)] if lookup else [])
    names = tuple(draft.name for draft in members)
    columns = [traces.column(draft.name) if draft.file else None for draft in members]
    table = cast(torch.nn.Embedding, target.model.get_input_embeddings())
    embedding = table.weight.detach().float().numpy()
    topic = fit_topic(train, columns, names, [draft.expected for draft in members], embedding)
    (out / "drafts").mkdir(parents=True, exist_ok=True)
    for draft in members:
        if draft.file:
            shutil.copyfile(drafts / Path(draft.file).name, out / draft.file)
    for split in ("train", "heldout"):
        replace(traces, traces=traces.split(split)).save(out / "traces" / f"{split}.parquet")
    topic.save(out / "topic.safetensors")
    zoo = Zoo(name, out, facts, tuple(members), "topic.safetensors")
    zoo.save()
    return zoo


def _traces(paths: Sequence[Path]) -> TraceSet:
    try:
        return concatenated([TraceSet.load(path) for path in paths])
    except ValueError as error:
        raise UserError(f"{', '.join(map(str, paths))}: {error}: record them together") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.zoo.assemble", description="Assemble a zoo from a target, draft files and traces."
    )
    parser.add_argument("--name", required=True, help="name of the zoo")
    parser.add_argument("--target", required=True, help="Hugging Face folder or hub id of the target")
    parser.add_argument("--source", action="append", default=[], help="where users get the target; may be repeated")
    parser.add_argument("--drafts", required=True, type=Path, help="folder of draft files")
    parser.add_argument(
        "--traces", required=True, type=Path, action="append", help="traces of both splits; may be repeated"
    )
    parser.add_argument("--no-lookup", action="store_true", help="leave out the draft without weights")
    parser.add_argument("--out", required=True, type=Path, help="folder of the zoo")
    options = parser.parse_args(arguments)
    try:
        folder = resolve_model(options.target)
        zoo = assemble(
            options.name,
            load_target(str(folder)),
            tuple(options.source) or (options.target,),
            options.drafts,
            _traces(options.traces),
            options.out,
            folder,
            not options.no_lookup,
        )
    except UserError as error:
        print(f"assemble: {error}", file=sys.stderr)
        return 2
    for draft in zoo.drafts:
        print(f"{draft.name:>12}  expected acceptance {draft.expected:.3f}  calibration {draft.calibration}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
