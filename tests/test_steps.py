"""What counts in tests is loud where it counts nothing."""

from __future__ import annotations

import pytest

from tests.support.steps import calls
from trivium.common.pieces import Pieces

pytestmark = pytest.mark.pure


def test_calls_of_the_function_itself_are_counted() -> None:
    pieces = Pieces()

    def work() -> None:
        for _ in range(3):
            pieces.add(b"a")
        pieces.take()

    assert calls(Pieces.add, work) == 3
    assert calls(Pieces.add, lambda: pieces.add(b"a")) == 1


def test_a_function_that_is_not_called_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"Pieces\.take was not called"):
        calls(Pieces.take, lambda: Pieces().add(b"a"))


def test_what_is_no_function_of_the_product_is_an_error() -> None:
    class Other:
        def take(self) -> None: ...

    with pytest.raises(AssertionError, match="is not ours"):
        calls(Other.take, Other().take)
    with pytest.raises(AssertionError, match="cannot be counted"):
        calls(len, lambda: len("a"))
