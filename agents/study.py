"""One question, one plot: ``python -m agents.study study=slots suite=memspec policy=BUNDLE out=DIR``.

One key of the configuration takes several values; the same controllers, tuned once where the suite stands, serve the
same held-out streams at each. Leaves ``DIR/study-<name>.json`` and ``.png``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import hydra
from hydra.utils import to_absolute_path
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf, open_dict

from agents.bootstrap import Speeds, ratio_interval
from agents.evaluation import Factory, StreamResult, evaluate
from agents.report.curves import LineFigure, Series, curves
from agents.report.drawing import save_png
from agents.setup import prepare
from agents.suite import HELDOUT_SEED
from agents.tuning import Tuned, tuned_baselines
from runtime.bundle import Bundle, read_bundle
from runtime.errors import UserError
from runtime.files import read_json, write_json, written_whole

STUDY_SCHEMA = 1
PLAIN = "plain"


@dataclass(frozen=True)
class Study:
    """What came out.

    Attributes:
        name: Of the study.
        title: For people.
        label: What was varied, with its unit.
        log: Whether the axis is logarithmic.
        suite: Setting in which it was varied.
        device: Name of the device.
        simulated: Whether times are of a built profile.
        values: Of the key.
        speedups: By controller: (speed / plain's, low, high) at every value; None where it could not run.
    """

    name: str
    title: str
    label: str
    log: bool
    suite: str
    device: str
    simulated: bool
    values: tuple[float, ...]
    speedups: Mapping[str, tuple[tuple[float, float, float], ...]]

    def figure(self) -> Figure:
        """Speed over plain decoding's, by value, with paired 95% intervals."""
        series = {name: Series(self.values, *zip(*points, strict=True)) for name, points in self.speedups.items()}
        return curves(LineFigure(self.title, self.label, "× plain decoding", series, self.log))

    def save(self, folder: Path) -> Path:
        """Write JSON and PNG; returns the path of the JSON."""
        path = folder / f"study-{self.name}.json"
        with written_whole(path.with_suffix(".png")) as aside:
            save_png(self.figure(), aside)
        write_json(path, {"schema": STUDY_SCHEMA, **asdict(self)})
        return path

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a study.

        Raises:
            UserError: If it is missing, damaged or of another schema.
        """
        data = read_json(path, "study", STUDY_SCHEMA)
        try:
            values = {key: value for key, value in data.items() if key != "schema"}
            values["values"] = tuple(values["values"])
            values["speedups"] = {
                name: tuple((float(v), float(low), float(high)) for v, low, high in points)
                for name, points in values["speedups"].items()
            }
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a whole study ({error}): run it again") from None


def run_study(config: DictConfig) -> Study:
    """Vary the key of the configuration's study.

    Raises:
        UserError: If the configuration, or a file it names, does not work.
    """
    study = config.study
    bundle = read_bundle(Path(to_absolute_path(config.policy))) if config.policy else None
    wanted = {PLAIN, *study.controllers}
    setting = prepare(config)
    streams = 1 if config.dry_run else config.suite.tuning_streams
    _, tuned = tuned_baselines(setting, streams, config.seed, config.progress, lambda name: name in wanted)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for value in study.points:
        speeds = _at(config, value, tuned, bundle)
        for name, results in speeds.items():
            if name != PLAIN:
                found.setdefault(name, []).append((*ratio_interval(_speeds(results), _speeds(speeds[PLAIN])),))
    profile = setting.heldout.costs.profile
    return Study(
        name=study.name,
        title=study.title,
        label=study.label,
        log=study.log,
        suite=config.suite.name,
        device=profile.device,
        simulated=profile.simulated or study.key.startswith("device."),
        values=tuple(float(value) for value in study.points),
        speedups={name: tuple(points) for name, points in found.items()},
    )


def _at(
    config: DictConfig, value: float, tuned: Mapping[str, Tuned], bundle: Bundle | None
) -> dict[str, list[StreamResult]]:
    """Results by controller with the key at one value."""
    changed = config.copy()
    for key in (config.study.key, *config.study.get("also", ())):
        OmegaConf.update(changed, key, value)
    world = prepare(changed).heldout
    factories: dict[str, Factory] = {name: partial(each.make, world.costs) for name, each in tuned.items()}
    if bundle is not None and "policy" in config.study.controllers:
        factories["policy"] = bundle.controller
    chosen = world.streams(HELDOUT_SEED + config.seed, 1 if config.dry_run else config.study.streams)
    print(f"{config.study.key} = {value}", flush=True)
    results = evaluate(factories, chosen, world.session, config.seed, progress=config.progress, workers=0)
    return {name: [result for result in results if result.controller == name] for name in factories}


def _speeds(results: Sequence[StreamResult]) -> Speeds:
    return Speeds([result.tokens for result in results], [result.seconds for result in results])


@hydra.main(version_base=None, config_path="../conf", config_name="study")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    with open_dict(config):
        config.dry_run = config.get("dry_run", False)
    try:
        out = Path(to_absolute_path(config.out))
        print(f"study: {run_study(config).save(out)}")
    except UserError as error:
        sys.exit(f"study: {error}")


if __name__ == "__main__":
    main()
