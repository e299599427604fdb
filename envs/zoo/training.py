"""Training one draft: cross-entropy on what the target wrote, embeddings frozen, resumable by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from envs.zoo.batching import Batch, collate, deal
from envs.zoo.checkpoint import Progress, load_checkpoint, save_checkpoint
from envs.zoo.texts import Text
from runtime.engine.draft_file import HEAD
from runtime.engine.draft_net import DraftNet, draft_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WARM_UP = 0.25
"""Part of the steps in which the learning rate rises."""


@dataclass(frozen=True)
class TrainSettings:
    """How a draft is trained.

    Attributes:
        epochs: Passes over its texts.
        batch: Texts a step.
        peak_lr: Highest learning rate of the one-cycle schedule.
        weight_decay: Of AdamW.
        clip: Largest norm of a gradient.
        bf16: Multiply in bf16 (weights stay fp32); faster where the processor has bf16 instructions.
        seed: Order of the texts.
    """

    epochs: int = 5
    batch: int = 8
    peak_lr: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"expected at least 1 epoch and 1 text a batch, got {self.epochs} and {self.batch}")


def cut_draft(target: PreTrainedModel, layers: int, vocab: torch.Tensor) -> DraftNet:
    """An untrained draft: the target's first layers, final norm and ``vocab`` rows of its output head, copied.

    Raises:
        ValueError: If the target has too few layers.
    """
    net = DraftNet(draft_config(target, layers), vocab)
    given = target.base_model.state_dict()
    weights = {name: given[name].float().clone() for name in net.body.state_dict()}
    head = target.get_output_embeddings().weight.detach()  # type: ignore[no-untyped-call]
    net.load_weights({**weights, HEAD: head[vocab.long()].float().clone()})
    return net.eval()


def one_cycle(step: int, steps: int, peak: float) -> float:
    """Learning rate of a step: cosine up from ``peak / 25``, cosine down to nearly nothing."""
    rise = max(1, int(WARM_UP * steps))
    if step < rise:
        low, part = peak / 25, step / rise
    else:
        low, part = peak / 1e4, 1 - (step - rise) / max(1, steps - rise)
    return low + (peak - low) * (1 - math.cos(math.pi * part)) / 2


def batch_loss(net: DraftNet, embed: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy, nats, over written tokens that the draft can say; a scalar with a gradient."""
    sayable = batch.targets >= 0
    with torch.no_grad():
        inputs = embed(batch.ids)
    hidden = net.hidden(inputs).flatten(0, 1)
    logits = net.head(hidden[batch.at[sayable]])
    return functional.cross_entropy(logits.float(), batch.targets[sayable])


def train_draft(
    net: DraftNet,
    embed: nn.Module,
    texts: Sequence[Text],
    settings: TrainSettings,
    checkpoint: Path | None = None,
    key: str = "",
    label: str = "draft",
) -> Progress:
    """Train ``net`` in place.

    Args:
        net: From ``cut_draft``. It stays in evaluation mode: no dropout, so a resumed run repeats exactly.
        embed: The target's input embedding, not trained.
        texts: What it learns from.
        settings: How.
        checkpoint: File that keeps the state after every epoch; None = keep nothing.
        key: Fingerprint of all settings and texts; a checkpoint of another key is ignored.
        label: Name on the progress bar.

    Returns:
        Finished epochs and their losses.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.peak_lr, weight_decay=settings.weight_decay, fused=True)
    progress = load_checkpoint(checkpoint, key, net, optimizer) if checkpoint else Progress()
    lengths = [len(text.prompt_ids) + len(text.output_ids) for text in texts]
    steps = settings.epochs * math.ceil(len(texts) / settings.batch)
    with tqdm(total=steps, initial=progress.step, desc=label, unit="step", mininterval=5, disable=None) as bar:
        while progress.epoch < settings.epochs:
            losses = []
            for indices in deal(lengths, settings.batch, f"{settings.seed}-{progress.epoch}"):
                batch = collate([texts[index] for index in indices], net.vocab)
                for group in optimizer.param_groups:
                    group["lr"] = one_cycle(progress.step, steps, settings.peak_lr)
                losses.append(_step(net, embed, batch, optimizer, settings))
                progress.step += 1
                bar.update()
            progress.losses.append(sum(losses) / len(losses))
            progress.epoch += 1
            bar.set_postfix(loss=f"{progress.losses[-1]:.3f}")
            if checkpoint:
                save_checkpoint(checkpoint, key, net, optimizer, progress)
    return progress


def _step(
    net: DraftNet, embed: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, settings: TrainSettings
) -> float:
    if not bool((batch.targets >= 0).any()):
        return 0.0
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.bf16):
        loss = batch_loss(net, embed, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
    optimizer.step()
    return loss.item()
