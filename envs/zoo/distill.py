"""Build a zoo of drafts: ``python -m envs.zoo.distill --target FOLDER --corpus FILE --out FOLDER``.

Writes the corpus first if there is none, then one draft file a domain and a generalist. Killed and started again it
goes on behind the last finished epoch; a draft that exists and was made the same way is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from envs.zoo.agreement import agreement
from envs.zoo.corpus import load_or_write_corpus
from envs.zoo.plan import DraftPlan, plan_zoo, texts_sha256
from envs.zoo.prompts import PROMPT_FOLDER
from envs.zoo.target import load_target
from envs.zoo.texts import Text
from envs.zoo.training import TrainSettings, cut_draft, train_draft
from envs.zoo.vocabulary import covered, trim_vocabulary
from runtime.engine.draft_file import SUFFIX, DraftHeader, read_draft, read_draft_header, save_draft
from runtime.engine.draft_net import build_draft_net, draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.errors import UserError


class Distiller:
    """Builds drafts of one target into one folder.

    Args:
        model: The target.
        out: Folder of the draft files.
        settings: How every draft is trained.
        heldout: Held-out texts by domain, for the agreement of every draft with every domain.
    """

    def __init__(self, model: Any, out: Path, settings: TrainSettings, heldout: dict[str, list[Text]]) -> None:
        self.model = model
        self.embed = model.get_input_embeddings()
        self.target_sha256 = target_fingerprint(model)
        self.out = out
        self.settings = settings
        self.heldout = heldout

    def build(self, plan: DraftPlan) -> DraftHeader:
        """Train and save one draft, or return the header of the one that is there already."""
        path = self.out / f"{plan.name}{SUFFIX}"
        key = self._key(plan)
        if (kept := self._kept(path, key)) is not None:
            print(f"{plan.name}: exists, made with the same settings", flush=True)
            return kept
        vocab = trim_vocabulary(plan.texts, plan.rows)
        net = cut_draft(self.model, plan.layers, vocab)
        checkpoint = self.out / "checkpoints" / f"{plan.name}.safetensors"
        progress = train_draft(net, self.embed, plan.texts, self.settings, checkpoint, key, plan.name)
        training: dict[str, Any] = {
            "settings_sha256": key,
            **asdict(self.settings),
            "texts": len(plan.texts),
            "tokens": sum(len(text.output_ids) for text in plan.texts),
            "vocabulary_coverage": covered(plan.texts, vocab),
            "losses": progress.losses,
        }
        header = DraftHeader(plan.name, plan.name, self.target_sha256, draft_config(self.model, plan.layers), training)
        trained = self.out / "checkpoints" / f"{plan.name}{SUFFIX}"
        save_draft(trained, header, vocab, net.weights())
        training["agreement"] = self._agreement(trained)
        save_draft(path, header, vocab, net.weights())
        trained.unlink()
        checkpoint.unlink()
        print(f"{plan.name}: agreement {_row(training['agreement'])}", flush=True)
        return header

    def _agreement(self, path: Path) -> dict[str, float]:
        """Of the file, not of the net in hand: int8 rounding is part of what is measured."""
        net = build_draft_net(read_draft(path))
        return {domain: agreement(net, self.embed, texts) for domain, texts in self.heldout.items()}

    def _key(self, plan: DraftPlan) -> str:
        facts = {
            "target": self.target_sha256,
            "texts": texts_sha256(plan.texts),
            "heldout": {domain: texts_sha256(texts) for domain, texts in self.heldout.items()},
            "layers": plan.layers,
            "rows": plan.rows,
            "settings": asdict(self.settings),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _kept(self, path: Path, key: str) -> DraftHeader | None:
        if not path.exists():
            return None
        try:
            header = read_draft_header(path)
        except UserError:
            return None
        return header if header.training.get("settings_sha256") == key else None


def write_agreement(path: Path, headers: Sequence[DraftHeader], heldout: dict[str, list[Text]]) -> None:
    """Write the matrix draft by domain, aside first."""
    table = {
        "agreement": {header.name: header.training["agreement"] for header in headers},
        "heldout_texts": {domain: len(texts) for domain, texts in heldout.items()},
        "heldout_tokens": {domain: sum(len(text.output_ids) for text in texts) for domain, texts in heldout.items()},
    }
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)


def _row(values: dict[str, float]) -> str:
    return "  ".join(f"{domain} {value:.3f}" for domain, value in values.items())


def _heldout(texts: Sequence[Text], domains: Sequence[str]) -> dict[str, list[Text]]:
    chosen = {
        domain: [text for text in texts if text.prompt.domain == domain and text.prompt.split == "heldout"]
        for domain in domains
    }
    if missing := [domain for domain, found in chosen.items() if not found]:
        raise UserError(f"domains {missing}: no held-out text in the corpus; raise PromptCounts.single of 'heldout'")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m envs.zoo.distill",
        description="Distill drafts from a target's own text. Safe to kill and to run again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--target", required=True, help="Hugging Face folder or hub id of the target")
    add("--corpus", required=True, type=Path, help="Parquet file of texts, or a folder; written if it does not exist")
    add("--out", required=True, type=Path, help="folder of the draft files")
    add("--prompts", type=Path, default=PROMPT_FOLDER, help="folder of prompt grammars, one <domain>.yaml each")
    add("--domains", default="", help="comma-separated, in building order; empty = all of the corpus")
    add("--layers", type=int, default=2, help="target layers a draft copies")
    add("--rows", type=int, default=2048, help="vocabulary of a specialist")
    add("--generalist-rows", type=int, default=4096, help="vocabulary of the generalist")
    add("--texts", type=int, default=0, help="most texts a draft learns from; 0 = all of the smallest domain")
    add("--epochs", type=int, default=TrainSettings.epochs, help="passes over the texts")
    add("--batch", type=int, default=TrainSettings.batch, help="texts a step")
    add("--lr", type=float, default=TrainSettings.peak_lr, help="highest learning rate")
    add("--bf16", action="store_true", help="multiply in bf16; only faster on processors made for it")
    add("--threads", type=int, default=0, help="processor threads; 0 = torch's choice")
    add("--seed", type=int, default=0, help="draws prompts and texts, and orders them")
    return parser


def distill(options: argparse.Namespace) -> list[DraftHeader]:
    """Build the whole zoo.

    Raises:
        UserError: If an option, the target, the corpus or a grammar does not work.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    asked = [name.strip() for name in options.domains.split(",") if name.strip()]
    target = load_target(options.target)
    texts = load_or_write_corpus(options.corpus, target, options.prompts, asked, options.seed)
    domains = asked or sorted({text.prompt.domain for text in texts})
    try:
        settings = TrainSettings(
            epochs=options.epochs, batch=options.batch, peak_lr=options.lr, bf16=options.bf16, seed=options.seed
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    plans = plan_zoo(texts, domains, options.layers, options.rows, options.generalist_rows, options.texts, options.seed)
    heldout = _heldout(texts, domains)
    distiller = Distiller(target.model, options.out, settings, heldout)
    headers: list[DraftHeader] = []
    for plan in plans:
        try:
            headers.append(distiller.build(plan))
        except ValueError as error:
            raise UserError(f"draft '{plan.name}': {error}") from error
        write_agreement(options.out / "agreement.json", headers, heldout)
    return headers


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    try:
        headers = distill(_parser().parse_args(arguments))
    except UserError as error:
        print(f"distill: {error}", file=sys.stderr)
        return 2
    for header in headers:
        print(f"{header.name:>12}  {_row(header.training['agreement'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
