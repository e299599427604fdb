"""RAKV-ASD's choice between a stored prefix and computing it again."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.control.observation import GLOBAL_INDEX, Observation, bounds
from runtime.control.rakv_asd import RakvAsdController
from runtime.core import Phase
from tests.factories import NAMES, make_costs


@pytest.mark.parametrize(
    ("usable", "disk", "pays"),
    [(50, 0, True), (1, 0, False), (2, 0, True), (50, 50, False)],
    ids=["half of it", "a tie: 0.99% saved", "1.98% saved", "on a slow disk"],
)
def test_reuse_pays_if_it_saves_more_than_a_tie(usable: int, disk: int, pays: bool) -> None:
    """Computing 100 tokens takes 0.1 s; a load of 1,000 bytes 0.25 s, so a block of 320 bytes 0.08 s."""
    vector = np.zeros_like(bounds(len(NAMES))[0])
    for name, value in (("prompt_tokens", 100), ("usable_prefix_tokens", usable), ("usable_disk_tokens", disk)):
        vector[GLOBAL_INDEX[name]] = value
    observation = Observation(Phase.ADMIT, vector, np.ones(1, dtype=np.bool_))
    assert RakvAsdController(len(NAMES), 0, make_costs()).reuse_pays(observation) is pays
