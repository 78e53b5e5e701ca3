"""Counting what code does, since time says little: tests compare the counts for n and for 4 n.

``steps`` and ``calls`` see interpreted code only, so tests that use them are marked ``pure``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any


def steps(action: Callable[[], object]) -> int:
    """Bytecode instructions that ``action`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def calls(function: Callable[..., object], action: Callable[[], object]) -> int:
    """How often ``action`` calls a function of the product, which must be at least once.

    It is the function itself and no name: a test whose function is gone or is no longer what does
    the work would hold nothing.
    """
    assert isinstance(function, FunctionType), f"{function!r} cannot be counted"
    assert function.__module__.startswith("trivium"), f"{function!r} is not ours"
    code = function.__code__
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code is code:
            count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    assert count, f"{function.__qualname__} was not called"
    return count


def living(kind: type) -> int:
    """How many objects of a class there are, whoever refers to them."""
    return sum(isinstance(each, kind) for each in gc.get_objects())


class Compared:
    """A value that counts how often values of its kind are compared."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return isinstance(other, Compared) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


def comparisons(action: Callable[[], object]) -> int:
    """How often ``action`` compares ``Compared`` values."""
    before = Compared.comparisons
    action()
    return Compared.comparisons - before
