"""Controllers by name, as commands and reports write them."""

from __future__ import annotations

from collections.abc import Callable

from runtime.control.base import Controller
from runtime.control.memspec import MemSpecController
from runtime.control.rakv_asd import RakvAsdController
from runtime.control.static import StaticController, plain_controller
from runtime.core import GAMMAS, STOP_LEVELS
from runtime.errors import UserError
from runtime.profile import CostModel

NAMES = "policy, plain, plain_reuse, static:<draft>:<gamma>[:<stop level>], memspec[:<gamma>], rakv_asd[:<draft>]"


def make_controller(
    name: str,
    draft_names: tuple[str, ...],
    costs: CostModel,
    expected: tuple[float, ...],
    policy: Callable[[], Controller] | None = None,
) -> Controller:
    """Build a controller.

    Args:
        name: One of ``NAMES``.
        draft_names: Drafts of the zoo, in index order.
        costs: Costs of the device.
        expected: Mean training acceptance of every draft; ``rakv_asd`` without a draft takes the best.
        policy: Builds the frozen policy; None if there is no bundle.

    Raises:
        UserError: If the name, a draft or a number in it is not known.
    """
    kind, *parts = name.split(":")
    n = len(draft_names)
    if kind == "policy":
        if policy is None:
            raise UserError("controller 'policy' needs a bundle: pass --bundle, or choose another controller")
        return policy()
    if kind == "plain" and not parts:
        return plain_controller(n)
    if kind == "plain_reuse" and not parts:
        return plain_controller(n, reuse_kv=True)
    if kind == "static" and len(parts) in (2, 3):
        stop = _number(name, parts[2], tuple(range(len(STOP_LEVELS)))) if len(parts) == 3 else 0
        return StaticController(
            n, _draft(name, parts[0], draft_names), _number(name, parts[1], GAMMAS), stop, name=name
        )
    if kind == "memspec" and len(parts) <= 1:
        return MemSpecController(n, _number(name, parts[0], GAMMAS) if parts else 2)
    if kind == "rakv_asd" and len(parts) <= 1:
        best = max(range(n), key=lambda i: expected[i])
        return RakvAsdController(n, _draft(name, parts[0], draft_names) if parts else best, costs)
    raise UserError(f"unknown controller {name!r}: expected one of {NAMES}")


def _draft(name: str, draft: str, draft_names: tuple[str, ...]) -> int:
    if draft not in draft_names:
        raise UserError(f"controller {name!r}: no draft {draft!r} in this zoo, it has {', '.join(draft_names)}")
    return draft_names.index(draft)


def _number(name: str, text: str, allowed: tuple[int, ...]) -> int:
    if not text.isdecimal() or int(text) not in allowed:
        raise UserError(f"controller {name!r}: expected one of {allowed}, got {text!r}")
    return int(text)
