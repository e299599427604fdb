"""The page at ``/``: plain files, read once at the start."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class Asset(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str


TYPES = {"index.html": "text/html; charset=utf-8", "style.css": "text/css", "app.js": "text/javascript"}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def read_page() -> dict[str, Asset]:
    """All files by name."""
    folder = files(__name__)
    return {name: Asset((folder / name).read_bytes(), kind) for name, kind in TYPES.items()}
