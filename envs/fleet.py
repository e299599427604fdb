"""A fleet: worlds that differ in their device, for training one policy for many devices at once.

Every device is one profile with its costs and its memory multiplied by factors drawn log-uniformly within ranges. The
traces are shared: what a draft guesses does not depend on the device. Results on such devices are simulated.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from envs.base import Episode, SpecEnv
from envs.replay.costs import RememberedCosts
from envs.world import ReplayWorld
from runtime.core import MemoryConfig
from runtime.errors import UserError
from runtime.profile import CostModel, Curve, Profile

Range = tuple[float, float]


@dataclass(frozen=True)
class FleetRanges:
    """Least and largest factor on each kind of cost, against a plain decoding step, which stays as it is.

    Attributes:
        draft: On the forwards of drafts, guesses and catch-up alike.
        verify: On what a wide target forward costs beyond a plain step.
        prefill: On prefill.
        load: On loads of drafts.
        kv: On storing, restoring, reading and writing KV.
        budget: On the memory left beyond the verify workspace.
    """

    draft: Range = (0.5, 2.0)
    verify: Range = (0.25, 4.0)
    prefill: Range = (0.25, 2.0)
    load: Range = (0.25, 4.0)
    kv: Range = (0.5, 2.0)
    budget: Range = (0.5, 2.0)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = tuple(getattr(self, field.name))
            if len(value) != 2 or not 0.0 < value[0] <= value[1]:
                raise UserError(
                    f"device.fleet.{field.name}: expected two factors, the least and the largest, both above 0, got "
                    f"{list(value)}"
                )
            object.__setattr__(self, field.name, value)

    def draw(self, rng: np.random.Generator) -> Factors:
        """One device's factors."""
        drawn = {}
        for field in fields(self):
            low, high = getattr(self, field.name)
            drawn[field.name] = math.exp(rng.uniform(math.log(low), math.log(high)))
        return Factors(**drawn)


@dataclass(frozen=True)
class Factors:
    """What one device's costs are multiplied by; see ``FleetRanges``."""

    draft: float = 1.0
    verify: float = 1.0
    prefill: float = 1.0
    load: float = 1.0
    kv: float = 1.0
    budget: float = 1.0

    def profile(self, profile: Profile, name: str) -> Profile:
        """A device like this one, with these factors; simulated."""
        plain_s = profile.forward.at(1)
        wide = tuple(plain_s + self.verify * (seconds - plain_s) for seconds in profile.forward.seconds)
        drafts = {
            draft: dataclasses.replace(cost, forward=_times(cost.forward, self.draft), load_s=cost.load_s * self.load)
            for draft, cost in profile.drafts.items()
        }
        return dataclasses.replace(
            profile,
            device=name,
            forward=dataclasses.replace(profile.forward, seconds=wide),
            prefill=_times(profile.prefill, self.prefill),
            drafts=drafts,
            kv_store=_times(profile.kv_store, self.kv),
            kv_restore=_times(profile.kv_restore, self.kv),
            kv_load=None if profile.kv_load is None else _times(profile.kv_load, self.kv),
            kv_save=None if profile.kv_save is None else _times(profile.kv_save, self.kv),
            simulated=True,
        )

    def memory(self, memory: MemoryConfig) -> MemoryConfig:
        """A budget of this factor; the workspace is needed whatever the device."""
        free = memory.budget_bytes - memory.workspace_bytes
        return dataclasses.replace(memory, budget_bytes=memory.workspace_bytes + round(free * self.budget))


def _times(curve: Curve, factor: float) -> Curve:
    scaled = (tuple(value * factor for value in values) for values in (curve.seconds, curve.spread))
    return Curve(curve.x, *scaled)


@dataclass(frozen=True)
class Fleet:
    """Worlds of one zoo and split on different devices.

    Attributes:
        worlds: At least one; all have the same drafts.
    """

    worlds: tuple[ReplayWorld, ...]

    def __post_init__(self) -> None:
        if not self.worlds or any(world.drafts != self.worlds[0].drafts for world in self.worlds):
            raise UserError(f"a fleet: expected worlds of the same drafts, at least one, got {len(self.worlds)}")

    def episode(self, rng: np.random.Generator) -> Episode:
        """A random stream on a random device."""
        return self.worlds[int(rng.integers(len(self.worlds)))].episode(rng)

    def env(self) -> SpecEnv:
        """A Gymnasium environment over random streams on random devices."""
        first = self.worlds[0]
        return SpecEnv(self.episode, len(first.drafts), first.config.max_steps)


def make_fleet(given: Sequence[ReplayWorld], ranges: FleetRanges, count: int, seed: int) -> Fleet:
    """The given worlds' devices and, in turn around each of them, ``count`` random ones.

    Args:
        given: Worlds on known devices, at least one.
        ranges: Of the factors.
        count: Random devices, 0 for the given ones alone.
        seed: Of the factors; the first devices of a larger fleet are those of a smaller one.

    Raises:
        UserError: If there is no world, or the worlds' drafts differ.
    """
    rng = np.random.default_rng(seed)
    around = [
        on_another_device(given[index % len(given)], ranges.draw(rng), f"device {index}") for index in range(count)
    ]
    return Fleet((*given, *around))


def on_another_device(world: ReplayWorld, factors: Factors, name: str) -> ReplayWorld:
    """The same streams on a device with other costs and another budget; traces are shared, not copied."""
    original = world.costs.profile
    costs = CostModel(factors.profile(original, f"{original.device}, {name}"), tuple(d.name for d in world.drafts))
    config = dataclasses.replace(world.config, memory=factors.memory(world.config.memory))
    other = dataclasses.replace(world, costs=costs, config=config)
    bank = copy.copy(world.bank)  # the texts made ready are the same objects
    bank.costs = RememberedCosts(costs)
    vars(other).update(bank=bank, generator=world.generator)  # as the cached properties would
    return other


def fleet_plan(settings: Mapping[str, Any]) -> tuple[FleetRanges, int, int]:
    """Ranges, number and seed of the devices that ``device.fleet`` describes, see ``conf/device/fleet.yaml``.

    Raises:
        UserError: If a key is missing, unknown or of the wrong kind.
    """
    expected = {"count", "seed", *(field.name for field in fields(FleetRanges))}
    if set(settings) != expected:
        raise UserError(
            f"device.fleet: expected the keys {', '.join(sorted(expected))}, got {', '.join(sorted(settings))}; see "
            "conf/device/fleet.yaml"
        )
    count, seed = settings["count"], settings["seed"]
    for name, value in (("count", count), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise UserError(f"device.fleet.{name}: expected a whole number, at least 0, got {value!r}")
    try:
        return FleetRanges(**{name: settings[name] for name in sorted(expected - {"count", "seed"})}), count, seed
    except TypeError as error:
        raise UserError(f"device.fleet: expected two factors for every kind of cost ({error})") from None


def fleet_of(world: ReplayWorld, settings: Mapping[str, Any]) -> Fleet:
    """The fleet around a world that ``device.fleet`` describes.

    Raises:
        UserError: As ``fleet_plan``.
    """
    return make_fleet([world], *fleet_plan(settings))
