"""A picture of a report: a figure, what it is called and what it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure for the page, and a PNG file beside it.

    Attributes:
        title: Heading; its slug names the file, so titles of a page differ.
        caption: One or two sentences for somebody who sees such a figure for the first time.
        figure: The figure.
    """

    title: str
    caption: str
    figure: Figure

    @property
    def slug(self) -> str:
        """Name of the file without its ending: small letters, digits and hyphens."""
        return slug(self.title)


def slug(title: str) -> str:
    """A title as a file name.

    Raises:
        ValueError: If the title has no letter or digit.
    """
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if not name:
        raise ValueError(f"a picture's title needs a letter or digit, got {title!r}")
    return name
