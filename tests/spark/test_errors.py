"""What Spark shows of our errors begins with one line that says what is wrong."""

from __future__ import annotations

import inspect
import traceback

import pytest

from trivium_spark.errors import DataLossError, OptionError, first_line, first_lines


def shown(error: BaseException) -> list[str]:
    """As Spark's workers print it."""
    error.__cause__ = None
    return "".join(traceback.format_exception(error)).splitlines()


def test_the_text_comes_before_the_traceback() -> None:
    def lose() -> None:
        try:
            raise KeyError("s/0")
        except KeyError as error:
            raise DataLossError("s/0: offsets 1 to 2 do not exist") from error

    with pytest.raises(DataLossError) as raised, first_line():
        lose()
    lines = shown(raised.value)
    assert lines[0] == "trivium_spark.errors.DataLossError: s/0: offsets 1 to 2 do not exist"
    assert "Traceback (most recent call last):" in lines[1:]


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError) as raised, first_line():
        raise KeyError("x")
    assert shown(raised.value)[0] == "Traceback (most recent call last):"


def test_all_public_methods_do_so_and_keep_their_signatures() -> None:
    @first_lines
    class Source:
        def plan(self, start: int, limit: int = 3) -> int:
            if limit:
                raise OptionError(f"{start} {limit}")
            return start

    assert list(inspect.signature(Source().plan).parameters) == ["start", "limit"]
    assert Source().plan(4, limit=0) == 4
    with pytest.raises(OptionError) as raised:
        Source().plan(1)
    assert shown(raised.value)[0] == "trivium_spark.errors.OptionError: 1 3"
