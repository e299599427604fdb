"""A draft that is the target with layers left out: ``python -m envs.zoo.prune --target FOLDER --out FOLDER``.

Writes a recipe (see ``runtime.engine.draft_file``): which layers, not their weights. Without ``--layers`` it tries to
leave out every run of ``--drop`` neighbouring layers and keeps the draft that agrees best with texts of the target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from envs.record import limited, read_corpus
from envs.zoo.agreement import agreement
from envs.zoo.target import load_target
from envs.zoo.texts import Text
from runtime.engine.draft_file import HEAD, SUFFIX, DraftHeader, Recipe, save_recipe
from runtime.engine.draft_net import DraftNet, draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.sources import resolve_model
from runtime.engine.target_weights import TargetWeights
from runtime.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pruned_net(target: PreTrainedModel, layers: Sequence[int]) -> DraftNet:
    """The target with only these layers, over its whole vocabulary; it shares the target's weights.

    Raises:
        ValueError: If the target has no such layers, or they are not ascending.
    """
    head = target.get_output_embeddings().weight.detach()  # type: ignore[no-untyped-call]
    net = DraftNet(draft_config(target, layers), torch.arange(len(head)))
    given = target.base_model.state_dict()
    body = {name: given[_in_target(name, layers)] for name in net.body.state_dict()}
    net.load_weights({**body, HEAD: head})
    return net.eval()


def make_recipe(target: PreTrainedModel, folder: Path, layers: Sequence[int]) -> Recipe:
    """Where in the target's folder the weights of ``pruned_net`` lie.

    Raises:
        UserError: If a weight is not in the folder under a name that the target gives it.
        ValueError: If the target has no such layers, or they are not ascending.
    """
    stored = TargetWeights(folder).shapes
    names: dict[int, list[str]] = {}  # tied weights have several, and a folder may leave out the base model's prefix
    for model in (target, target.base_model):
        for name, weight in model.state_dict(keep_vars=True).items():
            names.setdefault(id(weight), []).append(name)
    own = target.base_model.state_dict(keep_vars=True)
    needed = {name: own[_in_target(name, layers)] for name in pruned_net(target, layers).body.state_dict()}
    needed[HEAD] = target.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    tensors: dict[str, str] = {}
    for name, weight in needed.items():
        found = [known for known in names[id(weight)] if known in stored]
        if not found:
            raise UserError(
                f"{folder}: expected a tensor '{names[id(weight)][0]}', found none: a family whose files name their "
                "tensors otherwise than its model cannot be pruned, take another target"
            )
        tensors[name] = found[0]
    return Recipe(tuple(layers), tensors)


def runs_left_out(layers: int, drop: int) -> Iterator[tuple[int, ...]]:
    """The layers that stay when ``drop`` neighbouring ones of ``layers`` go, for every place where they may go."""
    for begin in range(layers - drop + 1):
        yield (*range(begin), *range(begin + drop, layers))


def best_layers(target: PreTrainedModel, drop: int, texts: Sequence[Text]) -> tuple[tuple[int, ...], float]:
    """The layers to keep, and the agreement of what they make with the target's texts."""
    candidates = list(runs_left_out(target.config.num_hidden_layers, drop))
    embed, best = target.get_input_embeddings(), (candidates[0], -1.0)
    for layers in tqdm(candidates, desc="pruning", disable=None):
        if (found := agreement(pruned_net(target, layers), embed, texts)) > best[1]:
            best = (layers, found)
    return best


def _in_target(name: str, layers: Sequence[int]) -> str:
    """What a parameter of the pruned base model is called in the whole one: its layer is the first number."""
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isdecimal():
            parts[at] = str(layers[int(part)])
            break
    return ".".join(parts)


def prune(options: argparse.Namespace) -> DraftHeader:
    """Write the recipe that the command line asks for.

    Raises:
        UserError: If the target, the corpus or the choice of layers does not work.
    """
    folder = resolve_model(options.target)
    model = load_target(str(folder)).model
    fingerprint, count = target_fingerprint(model), model.config.num_hidden_layers
    training: dict[str, Any] = {}
    layers = options.layers
    if not layers:
        if not 1 <= options.drop < count:
            raise UserError(f"expected to leave out 1 to {count - 1} of {count} layers, got --drop {options.drop}")
        layers, training["agreement"] = best_layers(model, options.drop, _training_texts(options, fingerprint))
    training["left_out"] = sorted(set(range(count)) - set(layers))
    try:
        recipe = make_recipe(model, folder, layers)
    except ValueError as error:
        raise UserError(f"{error}: change --layers") from error
    header = DraftHeader(options.name, "generalist", fingerprint, draft_config(model, layers), training, recipe=recipe)
    save_recipe(options.out / f"{options.name}{SUFFIX}", header)
    return header


def _training_texts(options: argparse.Namespace, target: str) -> list[Text]:
    if options.corpus is None:
        raise UserError("expected --corpus to choose layers by, or --layers to name them, got neither")
    texts = [text for text in read_corpus(options.corpus, target) if text.prompt.split == "train"]
    if not texts:
        raise UserError(f"{options.corpus}: no text of the split 'train' to choose layers by: give one that has some")
    return limited(texts, options.limit)


def _layers(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m envs.zoo.prune",
        description="Make a draft of the target by leaving out layers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--target", required=True, help="Hugging Face folder or hub id of the target")
    add("--out", required=True, type=Path, help="folder of the draft file")
    add("--name", default="pruned", help="name of the draft")
    add("--layers", type=_layers, help="comma-separated layers to keep; else they are searched for")
    add("--drop", type=int, default=3, help="neighbouring layers to leave out")
    add("--corpus", type=Path, help="Parquet file of texts or traces; its training split chooses the layers")
    add("--limit", type=int, default=20, help="most texts that choose")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    try:
        header = prune(_parser().parse_args(arguments))
    except UserError as error:
        print(f"prune: {error}", file=sys.stderr)
        return 2
    print(f"{header.name}: left out {header.training['left_out']}, agreement {header.training.get('agreement')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
