"""Errors of the Spark bridge, by who is to blame.

::

    TriviumSparkError
     +-- OptionError          the query: an option, a schema or a value in a row
     +-- DataLossError        nobody here: records that the query must read are gone
     +-- GroupTakenOver       another query: it uses the same consumer group
     +-- BrokerUnavailable    the broker could not be reached within ``retryTimeout``

Spark shows the class and the text of an error that ends a query inside its own
``StreamingQueryException`` or ``AnalysisException``, so each text says what to do about it.
"""

from __future__ import annotations


class TriviumSparkError(Exception):
    """Base of all errors of the Spark bridge."""


class OptionError(TriviumSparkError, ValueError):
    """An option, the schema or a value of a row is not what the data source takes."""


class DataLossError(TriviumSparkError):
    """Records between the query's checkpoint and the stream's end do not exist any more."""


class GroupTakenOver(TriviumSparkError):
    """Another query has begun to use the same consumer group; this one must stop."""


class BrokerUnavailable(TriviumSparkError, ConnectionError):
    """The broker did not answer for as long as ``retryTimeout`` allows."""
