"""The learner's part of a checkpoint: weights (statistics of normalisation among them), optimiser, counters, last step.

stable-baselines3's own file holds the weights and the optimiser; what follows the last observation is lost there. This
tree is whole at the end of a rollout and its update, when the rollout's buffer is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

CARRIED = (
    "num_timesteps",
    "_n_updates",
    "_episode_num",
    "_n_calls",
    "_current_progress_remaining",
    "exploration_rate",
    "_last_obs",
    "_last_episode_starts",
    "_last_lstm_states",
)
"""Attributes of stable-baselines3's algorithms that outlive a rollout; an algorithm has some of them."""
WINDOWS = ("ep_info_buffer", "ep_success_buffer")
"""Statistics of the last episodes."""


def learner_state(learner: BaseAlgorithm) -> dict[str, Any]:
    """The learner between two rollouts, as a tree; arrays are the learner's own, not copies."""
    return {
        "parameters": learner.get_parameters(),
        "attributes": {name: getattr(learner, name) for name in CARRIED if hasattr(learner, name)},
        "windows": {name: list(getattr(learner, name) or ()) for name in WINDOWS},
        "action_space": learner.action_space.np_random.bit_generator.state,
        "replay": _replay_state(learner),
    }


def restore_learner(learner: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Put a fresh learner of the same configuration where another one stood."""
    learner.set_parameters(dict(state["parameters"]), device="cpu")
    for name, value in state["attributes"].items():
        setattr(learner, name, _shaped_like(getattr(learner, name, None), value))
    for name, window in state["windows"].items():
        setattr(learner, name, deque(window, maxlen=learner._stats_window_size))
    learner.action_space.np_random.bit_generator.state = state["action_space"]
    _restore_replay(learner, state["replay"])


def weights(learner: BaseAlgorithm) -> dict[str, Any]:
    """A copy of what decides: the policy's weights and the statistics of its observations."""
    copied = {name: value.detach().clone() for name, value in learner.policy.state_dict().items()}
    return {"policy": copied}


def restore_weights(learner: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Put such weights into the learner."""
    learner.policy.load_state_dict(dict(state["policy"]))


def _shaped_like(now: Any, value: Any) -> Any:
    """Named tuples were kept as plain ones: give them their names again."""
    return type(now)(*value) if isinstance(value, tuple) and hasattr(now, "_fields") else value


def _replay_state(learner: BaseAlgorithm) -> dict[str, Any] | None:
    """The filled part of an off-policy learner's replay buffer; None if there is none."""
    buffer: Any = getattr(learner, "replay_buffer", None)
    if buffer is None:
        return None
    filled = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {
        name: value[:filled]
        for name, value in vars(buffer).items()
        if isinstance(value, np.ndarray) and len(value) == buffer.buffer_size
    }
    return {"pos": buffer.pos, "full": buffer.full, "arrays": arrays}


def _restore_replay(learner: BaseAlgorithm, state: Mapping[str, Any] | None) -> None:
    buffer: Any = getattr(learner, "replay_buffer", None)
    if state is None or buffer is None:
        return
    buffer.pos, buffer.full = state["pos"], state["full"]
    for name, array in state["arrays"].items():
        getattr(buffer, name)[: len(array)] = array
