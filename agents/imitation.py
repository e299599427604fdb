"""Warm start by imitation: a controller is watched on replayed streams, the policy learns to decide as it does.

Supervised learning: cross-entropy of every dimension over its legal values. The library for this, ``imitation`` 1.0.1,
needs gymnasium 0.29 and stable-baselines3 2.2, which this project is long past, so it is written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from agents.choices import Choices
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.control.action import ActionCodec, BoolMask
from runtime.control.base import Controller
from runtime.core import Outcome
from runtime.session import DecodeSession

RATE = 1e-3
"""Learning rate, falling to a tenth."""
BATCH = 256
"""Decisions of a gradient step."""
HELD_BACK = 0.1
"""Streams that only agreement is measured on, as a share of those learned from."""
IMITATION_SEED = 20_000
"""Streams are drawn with this plus the run's seed: neither those of training nor those of validation."""

Teacher = Callable[[Stream], Controller]
"""From a stream to who serves it; an oracle looks into the stream, a heuristic does not."""


@dataclass(frozen=True)
class Demonstrations:
    """What a controller saw and did.

    Attributes:
        observations: Raw, float32, shape (decisions, D).
        masks: What was legal, shape (decisions, sum(nvec)).
        actions: What was carried out, int64, shape (decisions, 5).
    """

    observations: npt.NDArray[np.float32]
    masks: BoolMask
    actions: npt.NDArray[np.int64]


def demonstrate(
    teacher: Teacher,
    make_session: Callable[[], DecodeSession],
    codec: ActionCodec,
    streams: Sequence[Stream],
    progress: bool = False,
) -> Demonstrations:
    """Let the teacher serve the streams, each on a fresh session."""
    observations, masks, actions = [], [], []
    for stream in tqdm(streams, desc="watching the teacher", unit="streams", disable=not progress):
        session, controller = make_session(), teacher(stream)
        controller.begin_stream()
        session.start(item.request for item in stream)
        outcome: Outcome | None = None
        while outcome is None or not outcome.stream_finished:
            observation = session.observe()
            outcome = session.advance(controller.decide(observation))
            controller.learn(outcome)
            observations.append(observation.vector.copy())
            masks.append(observation.mask.copy())
            actions.append(codec.encode(outcome.decision))
    return Demonstrations(np.stack(observations), np.stack(masks), np.stack(actions))


def imitate(policy: Any, shown: Demonstrations, epochs: int, seed: int, progress: bool = False) -> None:
    """Supervised learning of what was shown; the value network is left as it is.

    Args:
        policy: Any of ``agents.policy``, without a memory.
        shown: At least one decision.
        epochs: Passes over all decisions.
        seed: Of the order.
        progress: Whether to show a progress bar.
    """
    policy.features_extractor.learn_scales(shown.observations)
    observations, masks, actions = map(torch.from_numpy, (shown.observations, shown.masks, shown.actions))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE)
    batches = -(-len(actions) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=epochs * batches)
    for _ in tqdm(range(epochs), desc="imitating", unit="passes", disable=not progress):
        for rows in torch.split(torch.randperm(len(actions), generator=generator), BATCH):
            loss = _loss(policy, observations[rows], masks[rows], actions[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def _loss(policy: Any, observations: Tensor, masks: Tensor, actions: Tensor) -> Tensor:
    choices, places, may = _chosen(policy, observations, masks, actions)
    return -(choices.log_probabilities.gather(1, places) * may).sum(dim=1).mean()


def _chosen(policy: Any, observations: Tensor, masks: Tensor, actions: Tensor) -> tuple[Choices, Tensor, Tensor]:
    """The policy's choices, where the teacher's values are among all values, and which of them the policy may take."""
    choices = Choices(policy.action_space.nvec, None).proba_distribution(policy.scores(observations))
    legal = masks if policy.trimming is None else policy.trimming(masks)
    choices.apply_masking(legal)
    places = actions + torch.tensor(ActionCodec(policy.features_extractor.n_drafts).offsets[:-1])
    return choices, places, legal.gather(1, places)


@torch.no_grad()
def agreement(policy: Any, shown: Demonstrations) -> float:
    """Share of the decisions of which every part that the policy may decide is the teacher's."""
    observations, masks, actions = map(torch.from_numpy, (shown.observations, shown.masks, shown.actions))
    choices, _, may = _chosen(policy, observations, masks, actions)
    return float(((choices.mode() == actions) | ~may).all(dim=1).float().mean())


def imitate_teacher(
    policy: Any, teacher: Teacher, world: ReplayWorld, streams: int, epochs: int, seed: int, progress: bool = False
) -> float:
    """Watch a teacher on streams of a world, imitate it, and return the agreement on other streams.

    Args:
        policy: Any of ``agents.policy``, without a memory.
        teacher: Whom to imitate.
        world: Replay world of the training split.
        streams: Streams to learn from; a tenth as many more are watched to measure agreement, one at least.
        epochs: Passes over all decisions.
        seed: Of the streams and of the order.
        progress: Whether to show progress bars.
    """
    held = max(1, round(HELD_BACK * streams))
    drawn = world.streams(IMITATION_SEED + seed, streams + held)
    codec = ActionCodec(len(world.drafts))
    learned, judged = (
        demonstrate(teacher, world.session, codec, part, progress) for part in (drawn[held:], drawn[:held])
    )
    imitate(policy, learned, epochs, seed, progress)
    return agreement(policy, judged)
