"""Errors of the Spark bridge, by who is to blame.

::

    TriviumSparkError
     +-- OptionError          the query: an option, a schema or a value in a row
     +-- DataLossError        nobody here: records that the query must read are gone
     +-- GroupTakenOver       another query: it uses the same consumer group
     +-- BrokerUnavailable    the broker could not be reached within ``retryTimeout``

Spark shows the class and the text of an error that ends a query inside its own
``StreamingQueryException`` or ``AnalysisException``, so each text says what to do about it, in one
line, and ``first_line`` has Spark show it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")


class TriviumSparkError(Exception):
    """Base of all errors of the Spark bridge."""

    #: Spark takes the cause away from what it shows, which would leave out the context too.
    __suppress_context__ = False


class OptionError(TriviumSparkError, ValueError):
    """An option, the schema or a value of a row is not what the data source takes."""


class DataLossError(TriviumSparkError):
    """Records between the query's checkpoint and the stream's end do not exist any more."""


class GroupTakenOver(TriviumSparkError):
    """Another query has begun to use the same consumer group; this one must stop."""


class BrokerUnavailable(TriviumSparkError, ConnectionError):
    """The broker did not answer for as long as ``retryTimeout`` allows."""


@contextmanager
def first_line() -> Iterator[None]:
    """Have the text of our errors come before their traceback.

    Spark passes on what Python prints of an error, but for its cause. That begins with the error's
    context, and one that was never raised is printed as one line.
    """
    try:
        yield
    except TriviumSparkError as error:
        error.__cause__ = None
        error.__context__ = type(error)(*error.args)
        raise


def _with_first_line(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with first_line():
            return function(*args, **kwargs)

    return call


def first_lines(class_: type[T]) -> type[T]:
    """A class that Spark calls, each of whose public methods does what ``first_line`` says.

    Of a method that is a generator only the call is guarded, not what it yields later.
    """
    for name, function in list(vars(class_).items()):
        if isinstance(function, FunctionType) and not name.startswith("_"):
            setattr(class_, name, _with_first_line(function))
    return class_
