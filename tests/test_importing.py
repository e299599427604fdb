"""Imports that are not searched for garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from runtime.importing import importing

MADE_UP = "specpilot_made_up"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    sys.modules.pop(MADE_UP, None)
    gc.unfreeze()
    gc.enable()


def test_what_was_imported_is_searched_no_more() -> None:
    gc.unfreeze()
    with importing():
        assert not gc.isenabled()
        sys.modules[MADE_UP] = ModuleType(MADE_UP)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(each is sys.modules[MADE_UP] for each in gc.get_objects())


def test_nothing_is_kept_where_nothing_was_imported() -> None:
    gc.unfreeze()
    with importing():
        pass
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_import_that_fails_leaves_the_search_on() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), importing():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


def test_who_searches_nothing_goes_on_so() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()
