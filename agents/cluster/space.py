"""The search space of a hyperparameter search, from YAML to Ray Tune's domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import UserError

KINDS = {"uniform": 2, "loguniform": 2, "quniform": 3, "qloguniform": 3, "randint": 2, "lograndint": 2, "choice": None}
"""Functions of ``ray.tune`` by name, with how many numbers each takes; None = a list of any length."""


def search_space(search: Mapping[str, Any]) -> dict[str, Any]:
    """A domain for every key of the training configuration that is searched.

    Args:
        search: ``{"agent.learning_rate": {"loguniform": [1e-5, 1e-3]}, "agent.n_steps": {"choice": [512, 2048]}}``.

    Raises:
        UserError: If a domain is not one of ``KINDS``, or its numbers do not fit.
    """
    from ray import tune

    space = {}
    for key, domain in search.items():
        if not isinstance(domain, Mapping) or len(domain) != 1 or next(iter(domain)) not in KINDS:
            raise UserError(f"search.{key}: expected one of {', '.join(KINDS)} and its values, got {domain!r}")
        ((kind, values),) = domain.items()
        if not isinstance(values, Sequence) or len(values) != (KINDS[kind] or len(values)) or not values:
            wanted = "a list of values" if KINDS[kind] is None else f"a list of {KINDS[kind]} numbers"
            raise UserError(f"search.{key}: expected {kind} of {wanted}, got {values!r}")
        make = getattr(tune, kind)
        space[key] = make(values) if kind == "choice" else make(*values)
    if not space:
        raise UserError("search: expected keys of the training configuration with their domains, got none")
    return space
