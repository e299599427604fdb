"""Charts of RAKV-ASD's menu: where a draft length breaks even, and what each action costs a request."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from agents.menu_answers import BreakEven, Latency
from agents.report.drawing import ACCENT, INK, QUIET, SERIES_COLOURS, bare, canvas, name_rows, styled


def break_even_chart(evens: Sequence[BreakEven]) -> Figure:
    """Predicted and measured break-even acceptance by draft length."""
    with styled():
        figure = canvas(3.4)
        axes = bare(figure.add_subplot(), grid="y")
        places = range(len(evens))
        axes.plot(places, [even.predicted for even in evens], "D", color=QUIET, markersize=8, label="predicted")
        axes.plot(places, [even.measured for even in evens], "o", color=ACCENT, markersize=8, label="measured")
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xticks(places, [str(even.gamma) for even in evens])
        axes.set(xlabel="tokens guessed", ylabel="share of right guesses needed", title="Where guessing pays")
        axes.legend(frameon=False)
    return figure


def latency_chart(waits: Sequence[Latency]) -> Figure:
    """Mean latency of a request by action, short and long prompts side by side."""
    with styled():
        figure = canvas(1.2 + 0.42 * len(waits))
        axes = bare(figure.add_subplot())
        places = [float(len(waits) - index) for index in range(len(waits))]
        for shift, kind, colour in ((0.18, "short_s", SERIES_COLOURS[4]), (-0.18, "long_s", SERIES_COLOURS[0])):
            lengths = [getattr(wait, kind) for wait in waits]
            label = "short prompts" if kind == "short_s" else "long prompts"
            axes.barh([place + shift for place in places], lengths, height=0.34, color=colour, label=label)
        name_rows(axes, places, [wait.action for wait in waits], [wait.action == "policy" for wait in waits])
        axes.set(xlabel="mean latency of a request, seconds", title="What each action costs")
        axes.legend(frameon=False)
    return figure
