"""Branching Q-learning: a value for every legal value of every dimension, learned off-policy from a replay buffer.

The joint space is not flattened (3,712 actions with seven drafts): ``Q(s, a) = V(s) + sum over dimensions d of
(A_d(s, a_d) - best legal A_d)``. So the best action is the best of every dimension, what is illegal is left out by its
mask, and the value of the best action is V itself: the target needs no mask of the next state. A_d in plain decoding
steps is the policy's score / sharpness, the unit of the prior: the untrained policy is the heuristic here too.
Source: Tavakoli et al. 2018, Action Branching Architectures (one network, a branch a dimension); Wang et al. 2016,
Dueling Network Architectures, eq. 8 (the best advantage is zero); Mnih et al. 2015 (target network, replay).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor
from torch.nn import functional

from agents.choices import Choices
from agents.learners.base import threads
from agents.policy import ResidualPolicy
from runtime.control.action import BoolMask


class MaskedReplayBuffer(ReplayBuffer):
    """A replay buffer that holds what was legal beside each observation.

    Attributes:
        masks: Shape (places, environments, sum(nvec)).
        legal: Masks of the transition that ``add`` takes next, shape (environments, sum(nvec)).
    """

    def __init__(self, buffer_size: int, observation_space: Any, action_space: Any, **kwargs: Any) -> None:
        super().__init__(buffer_size, observation_space, action_space, **kwargs)
        self.masks = np.ones((self.buffer_size, self.n_envs, int(action_space.nvec.sum())), dtype=np.bool_)
        self.legal: BoolMask | None = None

    def add(self, *args: Any, **kwargs: Any) -> None:
        assert self.legal is not None, "legal values come before the transition"
        self.masks[self.pos] = self.legal
        super().add(*args, **kwargs)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Transitions: observations, next ones, actions, rewards, whether the stream ended, masks; ``count`` each."""
        place = np.random.randint(0, self.buffer_size if self.full else self.pos, count)  # noqa: NPY002 - SB3 seeds it
        env = np.random.randint(0, self.n_envs, count)  # noqa: NPY002
        ended = self.dones[place, env] * (1.0 - self.timeouts[place, env])
        observations, following, actions, rewards, masks = (
            torch.from_numpy(array[place, env])
            for array in (self.observations, self.next_observations, self.actions, self.rewards, self.masks)
        )
        return observations, following, actions.long(), rewards, torch.from_numpy(ended), masks


class BranchingDQN(OffPolicyAlgorithm):
    """Q-learning over the whole decision, masked.

    Args:
        policy: The network; scores are advantages x sharpness.
        env: Environments with ``action_masks``.
        sharpness: Scores per plain decoding step, as the prior's.
        target_every: Decisions between two copies to the target network.
        explore: (share of the run over which exploration falls, chance of a random decision at first, at last).
        update_threads: CPU threads of a gradient step; 0 = as many as are set.
        kwargs: Of ``OffPolicyAlgorithm``.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {}
    policy: ResidualPolicy
    replay_buffer: MaskedReplayBuffer

    def __init__(
        self,
        policy: type[ResidualPolicy],
        env: Any,
        sharpness: float,
        target_every: int,
        explore: tuple[float, float, float],
        update_threads: int = 0,
        **kwargs: Any,
    ) -> None:
        self.sharpness, self.target_every, self.explore = sharpness, target_every, explore
        self.exploration_rate, self._n_calls, self.update_threads = explore[1], 0, update_threads
        super().__init__(
            policy, env, replay_buffer_class=MaskedReplayBuffer, sde_support=False, support_multi_env=True,
            supported_action_spaces=(spaces.MultiDiscrete,), **kwargs,
        )  # fmt: skip
        self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self.target = deepcopy(self.policy)
        self.target.requires_grad_(False)
        self._sizes = [int(size) for size in self.action_space.nvec]  # type: ignore[attr-defined]

    def _sample_action(
        self, learning_starts: int, action_noise: object = None, n_envs: int = 1
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
        assert self.env is not None and isinstance(self._last_obs, np.ndarray)
        self.replay_buffer.legal = get_action_masks(self.env)
        action = self._decide(self._last_obs, self.replay_buffer.legal, self.exploration_rate)
        return action, action

    @torch.no_grad()
    def _decide(
        self, observations: np.ndarray[Any, Any], masks: BoolMask, explore: float
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The best legal decision, or with this chance a random legal one; (environments, 5)."""
        scores = self.policy.scores(torch.as_tensor(observations, dtype=torch.float32))
        best = self._choices(scores, torch.as_tensor(masks)).mode()
        if explore > 0.0:
            at_random = self._choices(torch.zeros_like(scores), torch.as_tensor(masks)).sample()
            best = torch.where(torch.rand(len(best), 1) < explore, at_random, best)
        decided: np.ndarray[Any, np.dtype[np.int64]] = best.numpy()
        return decided

    def _choices(self, scores: Tensor, masks: Tensor) -> Choices:
        choices = Choices(self._sizes, self.policy.trimming).proba_distribution(scores)
        choices.apply_masking(masks)
        return choices

    def _on_step(self) -> None:
        self._n_calls += 1
        if self._n_calls % max(1, self.target_every // self.n_envs) == 0:
            self.target.load_state_dict(self.policy.state_dict())
        share, first, last = self.explore
        gone = min(1.0, (1.0 - self._current_progress_remaining) / share) if share > 0.0 else 1.0
        self.exploration_rate = first + gone * (last - first)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Gradient steps on transitions of the buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        with threads(self.update_threads):
            losses = [self._step(batch_size) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", float(np.mean(losses)))

    def _step(self, batch_size: int) -> float:
        observations, following, actions, rewards, ended, masks = self.replay_buffer.draw(batch_size)
        with torch.no_grad():
            best_next = value_of(self.target, following)
            target = rewards + (1.0 - ended) * self.gamma * best_next
        loss = functional.smooth_l1_loss(self.quality(observations, actions, masks), target)
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.policy.optimizer.step()
        return float(loss.item())

    def quality(self, observations: Tensor, actions: Tensor, masks: Tensor) -> Tensor:
        """Q of decisions (batch, 5), in plain decoding steps to come, (batch,)."""
        features = self.policy.features_extractor(observations)
        net = self.policy.mlp_extractor
        scores = self.policy.action_net(net.forward_actor(features))
        value: Tensor = self.policy.value_net(net.forward_critic(features)).squeeze(1)
        short = self._choices(scores, masks).shortfall(actions)
        return value + short / self.sharpness

    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray[Any, Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: BoolMask | None = None,
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Any]:
        """The best legal decision; with the current exploration unless ``deterministic``."""
        single = observation.ndim == 1
        batch = observation[None] if single else observation
        masks = np.ones((len(batch), sum(self._sizes)), dtype=np.bool_) if action_masks is None else action_masks
        action = self._decide(batch, masks.reshape(len(batch), -1), 0.0 if deterministic else self.exploration_rate)
        return (action[0] if single else action), state

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "target"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "target"], []


def value_of(policy: ResidualPolicy, observations: Tensor) -> Tensor:
    """V of raw observations, (batch,)."""
    features = policy.features_extractor(observations)
    value: Tensor = policy.value_net(policy.mlp_extractor.forward_critic(features)).squeeze(1)
    return value
