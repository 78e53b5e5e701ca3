"""What takes part in the end of a turn."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class EndOfTurn:
    """Something that collects changes during a turn and writes them at its end."""

    def flush_turn(self) -> None:
        """Write what was collected to the current write batch. Must not start new work."""
        raise NotImplementedError
