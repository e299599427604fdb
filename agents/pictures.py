"""The pictures of a suite's report that need more than its rows: one stream, the decision map, regret by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.decision_map import decision_map
from agents.evaluation import Factory
from agents.regret import regret_report
from agents.report.decision_chart import CAPTION as MAP
from agents.report.decision_chart import decision_maps
from agents.report.gantt import CAPTION as GANTT
from agents.report.gantt import gantt
from agents.report.picture import Picture
from agents.report.regret_chart import CAPTION as REGRET
from agents.report.regret_chart import regret_bars
from agents.timeline import record_timeline
from envs.workload import Stream
from envs.world import ReplayWorld
from runtime.control.observation import Observation
from runtime.control.rakv_asd import RakvAsdController
from runtime.core import PLAIN, Phase

DRAWN = ("policy", "stacked", "memspec", "rakv_asd")
"""The stream is drawn for the first two of these that were judged."""
MAPPED = ("policy", "heuristic", "stacked")
"""The decision map is drawn for the first of these, beside RAKV-ASD's."""
SPLIT = ("policy", "heuristic", "stacked", "memspec", "rakv_asd", "best_static")
"""Whose regret is split by cause."""
REGRET_STREAMS = 10
"""Streams over which regret is split, at most."""


def suite_pictures(
    factories: Mapping[str, Factory], streams: Sequence[Stream], world: ReplayWorld, progress: bool
) -> tuple[Picture, ...]:
    """All that the judged controllers allow.

    Args:
        factories: The judged controllers.
        streams: Held-out streams.
        world: Where they are replayed.
        progress: Whether to show a progress bar.
    """
    drawn = [name for name in DRAWN if name in factories][:2]
    mapped = [name for name in MAPPED if name in factories][:1]
    split = {name: factories[name] for name in SPLIT if name in factories}
    pictures = []
    if drawn:
        timelines = [record_timeline(factories[name](), streams[0], world.session(), name) for name in drawn]
        topics = [item.request.domain for item in streams[0]]
        pictures.append(Picture("One stream of requests, drawn", GANTT, gantt(timelines, topics)))
    if mapped:
        template, draft = _first_round(streams[0], world), _widest(world)
        asked = [factories[mapped[0]](), RakvAsdController(len(world.drafts), draft, world.costs)]
        maps = [decision_map(controller, template, draft) for controller in asked]
        pictures.append(Picture("How far to guess", MAP, decision_maps(maps)))
    if split:
        regrets = regret_report(split, streams[:REGRET_STREAMS], world, progress)
        pictures.append(Picture("Where the time above the bound went", REGRET, regret_bars(regrets)))
    return tuple(pictures)


def _first_round(stream: Stream, world: ReplayWorld) -> Observation:
    """What is seen before the first round of a stream."""
    session = world.session()
    session.start(item.request for item in stream)
    while (observation := session.observe()).phase is not Phase.DECODE:
        session.advance(PLAIN)
    return observation


def _widest(world: ReplayWorld) -> int:
    """The draft model with the best expected acceptance; the only draft if none is a model."""
    models = [index for index, spec in enumerate(world.drafts) if spec.loadable] or [0]
    return max(models, key=lambda index: world.drafts[index].expected)
