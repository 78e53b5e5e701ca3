"""The notebook among the documents does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.walkthrough import run

PNG = b"\x89PNG\r\n\x1a\n"


# matplotlib makes its cache of fonts the first time.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_cells_print_what_the_page_says(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    cells = list(run(picture))
    assert len(cells) == 5
    for printed, expected in cells:
        assert printed == expected
    assert picture.read_bytes().startswith(PNG)
