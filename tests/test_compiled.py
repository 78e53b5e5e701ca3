"""The list of compiled modules in pyproject.toml says the truth about the build under test."""

import importlib
import os
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
MODULES: list[str] = PROJECT["tool"]["trivium"]["compiled"]


@pytest.mark.parametrize("name", MODULES)
def test_listed_module_is_compiled_in_the_compiled_build_only(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    is_compiled = not file.endswith(".py")
    assert is_compiled == (os.environ.get("TRIVIUM_EXPECT_COMPILED") == "1")


def test_list_is_sorted_and_without_duplicates() -> None:
    assert sorted(set(MODULES)) == MODULES
