"""What distributions offer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trivium.common.installed import installed


def distribution(folder: Path, name: str, group: str) -> None:
    place = folder / f"{name}-1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (place / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}:make\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_entry_points_are_found_by_their_group(folder: Path) -> None:
    distribution(folder, "one", "trivium.tests")
    distribution(folder, "other", "trivium.others")
    assert [(entry.name, entry.value) for entry in installed("trivium.tests")] == [
        ("one", "one:make")
    ]
    assert not installed("trivium.nothing")
    assert {"mqtt", "amqp", "native"} <= set(installed("trivium.adapters").names)


def test_distributions_are_read_once(folder: Path) -> None:
    assert not installed("trivium.tests")
    distribution(folder, "one", "trivium.tests")
    assert not installed("trivium.tests")


def test_another_path_is_looked_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not installed("trivium.tests")
    distribution(folder / "more", "one", "trivium.tests")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder / "more")])
    assert installed("trivium.tests").names == {"one"}
