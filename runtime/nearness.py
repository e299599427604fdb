"""How far a device is from the one a policy was trained for: costs in plain decoding steps, side by side.

A policy sees a few ratios of costs and has learned what pays under them. On a device where a load, a guess or a wide
verification costs many times what it did in training, what it learned is void, however well it did there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from runtime.errors import UserError
from runtime.profile import Profile

MOST_FACTOR = 4.0
"""A cost may be this many times what it was in training, or as many times less; training on a fleet goes as far."""

VERIFIED, PREFILLED = 5, 128
"""Width of a verification and length of a prompt whose costs are compared, tokens."""
LEAST_STEPS = 0.05
"""Costs below this many plain steps count as so many: they decide nothing."""


class Distance(NamedTuple):
    """The cost that differs most.

    Attributes:
        what: Which cost, for a message.
        known: In training, in plain decoding steps.
        here: On this device.
    """

    what: str
    known: float
    here: float

    @property
    def factor(self) -> float:
        """How many times dearer or cheaper, at least 1."""
        return math.exp(abs(math.log(self.here / self.known)))


def distance(known: Profile, here: Profile) -> Distance:
    """The cost that differs most between two profiles of one zoo."""
    ours = dict(_costs(here))
    pairs = [Distance(what, steps, ours[what]) for what, steps in _costs(known) if what in ours]
    return max(pairs, key=lambda pair: pair.factor)


def refuse_unless_near(known: Profile, here: Profile) -> None:
    """Make sure that a policy may be used on a device.

    Args:
        known: The profile it was trained for.
        here: The profile of this device, engine and dtype.

    Raises:
        UserError: If a cost differs by more than ``MOST_FACTOR``, saying which and how far.
    """
    far = distance(known, here)
    if far.factor > MOST_FACTOR:
        raise UserError(
            f"the policy was trained for {known.device} with {known.engine} in {known.dtype}, where {far.what} takes "
            f"{far.known:.2g} plain steps; here, with {here.engine} in {here.dtype}, it takes {far.here:.2g}: "
            f"{far.factor:.1f} times "
            f"{'more' if far.here > far.known else 'less'}, expected at most {MOST_FACTOR:g} times. Choose "
            "--controller stacked, which goes by this device's own costs, or train for this device (`specpilot profile "
            "--out FILE`, then `python train.py device=profiled device.profile=FILE`)"
        )


def _costs(profile: Profile) -> Iterator[tuple[str, float]]:
    """Names and costs in plain decoding steps."""
    plain_s = profile.decode.at(profile.reference_context) + profile.round_overhead_s
    yield f"verifying {VERIFIED} tokens", profile.forward.at(VERIFIED) / plain_s
    yield f"a prompt of {PREFILLED} tokens", profile.prefill.at(PREFILLED) / plain_s
    for name, cost in profile.drafts.items():
        if cost.bytes:
            yield f"a guess of draft '{name}'", max(LEAST_STEPS, cost.forward.at(1) / plain_s)
            yield f"loading draft '{name}'", max(LEAST_STEPS, cost.load_s / plain_s)
