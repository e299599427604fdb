"""Affine functions of an observation, many at once: one matrix product makes all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.control.observation import DRAFT_INDEX, GLOBAL_INDEX, G, P

Form = npt.NDArray[np.float64]
"""Weights of all features and, last, the constant; shape (D + 1,). Forms add up and scale as numbers do."""


class Forms:
    """The features of a zoo of ``n_drafts`` drafts as forms.

    Attributes:
        one: The form that is 1 everywhere.
    """

    def __init__(self, n_drafts: int) -> None:
        self._size = G + n_drafts * P + 1
        self.one = self._unit(self._size - 1)

    def of(self, name: str) -> Form:
        """A global feature."""
        return self._unit(GLOBAL_INDEX[name])

    def of_draft(self, name: str, draft: int) -> Form:
        """A draft's feature."""
        return self._unit(G + draft * P + DRAFT_INDEX[name])

    def _unit(self, place: int) -> Form:
        form = np.zeros(self._size)
        form[place] = 1.0
        return form


def stacked(forms: Sequence[Form]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Weights, shape (forms, D), and constants, shape (forms,), of a linear layer that computes all the forms."""
    matrix = np.array(forms).astype(np.float32)
    return matrix[:, :-1].copy(), matrix[:, -1].copy()
