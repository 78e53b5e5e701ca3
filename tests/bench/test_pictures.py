"""The pictures of the README."""

from __future__ import annotations

import re

import pytest

from bench.pictures import FOLDER
from bench.servers import REPOSITORY

PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
SHOWN = sorted(
    {
        name
        for page in PAGES
        for name in re.findall(r"pictures/([\w.-]+)", page.read_text(encoding="utf-8"))
    }
)


def test_each_picture_is_shown() -> None:
    assert sorted(file.name for file in FOLDER.iterdir()) == SHOWN


@pytest.mark.parametrize("name", SHOWN)
def test_a_picture_is_small(name: str) -> None:
    assert (FOLDER / name).stat().st_size < 150_000


def test_what_is_drawn_loads_nothing_from_elsewhere() -> None:
    drawn = (FOLDER / "top.svg").read_text(encoding="utf-8")
    assert "@font-face" not in drawn
    assert re.findall(r"url\((?!#)", drawn) == []
    assert "Trivium" in drawn
    assert "orders" in drawn
