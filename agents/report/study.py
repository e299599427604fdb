"""What a study found: speed over plain decoding's as one key of the configuration varies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from agents.report.curves import LineFigure, Series, curves
from agents.report.drawing import save_png
from agents.report.picture import Picture
from runtime.errors import UserError
from runtime.files import read_json, write_json, written_whole

STUDY_SCHEMA = 1


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

    def picture(self) -> Picture:
        """For a report."""
        where = f"{self.device}{', simulated' if self.simulated else ''}"
        caption = f"Suite {self.suite} on {where}: speed over plain decoding's, with paired 95% intervals."
        return Picture(self.title, caption, self.figure())


def study_pictures(folder: Path) -> tuple[Picture, ...]:
    """Every study of a folder.

    Raises:
        UserError: If the folder has none, or one is damaged.
    """
    found = sorted(folder.glob("study-*.json"))
    if not found:
        raise UserError(f"{folder}: expected studies (study-*.json), found none: run `python -m agents.study`")
    return tuple(Study.load(path).picture() for path in found)
