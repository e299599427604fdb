"""Pearson's chi-square test, for samples of tokens."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)


def chi_square(counts: Mapping[Key, int], expected: Mapping[Key, float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells that expect fewer than 5 are one cell.

    A count where nothing is possible makes the statistic infinite.
    """
    total = sum(counts.values())
    if any(outcome not in expected for outcome in counts):
        return float("inf"), 1
    cells: list[tuple[float, float]] = []
    rare, rare_expected = 0, 0.0
    for outcome, probability in expected.items():
        if total * probability >= 5.0:
            cells.append((counts.get(outcome, 0), total * probability))
        else:
            rare += counts.get(outcome, 0)
            rare_expected += total * probability
    if rare_expected > 0.0:
        cells.append((rare, rare_expected))
    return sum((seen - due) ** 2 / due for seen, due in cells), len(cells) - 1


def p_value(statistic: float, freedom: int) -> float:
    """Probability of a chi-square at least that large."""
    if freedom < 1:
        return 1.0 if statistic < 1e-9 else 0.0
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor(statistic / 2, dtype=torch.float64)))
