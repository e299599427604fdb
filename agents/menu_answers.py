"""What live runs say about RAKV-ASD's menu."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BreakEven:
    """The acceptance from which a draft length is faster than plain decoding; above 1 = never.

    Attributes:
        gamma: Draft length.
        predicted: By replay of the rounds that were run.
        measured: By the device's seconds of the same rounds.
    """

    gamma: int
    predicted: float
    measured: float


@dataclass(frozen=True)
class Latency:
    """Mean seconds of a request under one action. ``requests`` is how many were timed."""

    action: str
    short_s: float
    long_s: float
    requests: int


@dataclass(frozen=True)
class Choices:
    """Whether one controller was right to speculate, request by request.

    Attributes:
        controller: Name in reports.
        clear: Requests in which the better side was faster by more than the spread.
        right: Of these, where the controller took the better side.
        spread: Share by which repeated runs of the same request differ (half the inter-quartile range).
        predicted_error: Mean absolute error of replay's seconds for the same decisions, as a share.
    """

    controller: str
    clear: int
    right: int
    spread: float
    predicted_error: float
