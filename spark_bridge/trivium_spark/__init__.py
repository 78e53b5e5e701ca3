"""Spark bridge: a broker's streams as a replayable source, and its exchanges as a sink.

::

    import trivium_spark

    spark.dataSource.register(trivium_spark.TriviumDataSource)
    rows = spark.readStream.format("trivium").option("url", url).option("stream", "orders").load()

Needs pyspark 4.2 or newer (``pip install trivium[spark]``). See docs/spark.md.
"""

from trivium_spark.errors import (
    BrokerUnavailable,
    DataLossError,
    OptionError,
    TriviumSparkError,
)

try:
    from trivium_spark.queues import read_queue
    from trivium_spark.source import TriviumDataSource
    from trivium_spark.writer import forget_query, write_batch
except ImportError as error:
    raise ImportError(
        f"{error}: trivium_spark needs pyspark 4.2 or newer (pip install 'trivium[spark]')"
    ) from error

__all__ = [
    "BrokerUnavailable",
    "DataLossError",
    "OptionError",
    "TriviumDataSource",
    "TriviumSparkError",
    "forget_query",
    "read_queue",
    "write_batch",
]
