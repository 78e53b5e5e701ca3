"""Options are checked once, by name and by value, and a wrong one is named."""

import re

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from trivium.common.client_tls import ClientTls
from trivium_native.arrow import COLUMNS
from trivium_spark import TriviumDataSource
from trivium_spark.errors import OptionError
from trivium_spark.options import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Access,
    Division,
    Limits,
    Position,
    Selection,
    format_partition,
    parse_access,
    parse_partition,
    parse_read_options,
    parse_write_options,
)

URL = "trivium://user:secret@127.0.0.1:7650"
READ = {"url": URL, "stream": "orders"}


def test_read_defaults_of_a_streaming_query() -> None:
    options = parse_read_options(READ, is_streaming=True)
    assert options.selection == Selection(("orders",))
    assert options.start == Position(LATEST)
    assert options.fail_on_data_loss
    assert options.limits == Limits()
    assert options.division == Division()
    assert options.group is None
    assert options.retry_timeout == 60


def test_read_defaults_of_a_batch_query() -> None:
    options = parse_read_options(READ, is_streaming=False)
    assert options.start == Position(EARLIEST)
    assert options.end == Position(LATEST)


def test_option_names_do_not_care_for_case() -> None:
    given = CaseInsensitiveDict(
        {
            **READ,
            "startingOffsets": "Earliest",
            "MaxOffsetsPerTrigger": "7",
            "failondataloss": "F" + "alse",
        }
    )
    options = parse_read_options(given, is_streaming=True)
    assert options.start == Position(EARLIEST)
    assert options.limits == Limits(max_offsets=7)
    assert not options.fail_on_data_loss


def test_several_streams() -> None:
    given = {**READ, "stream": "orders, a/b"}
    both = Selection(("orders", "a/b"))
    assert parse_read_options(given, is_streaming=True).selection == both
    given = {"url": URL, "subscribe": "orders,a/b"}
    assert parse_read_options(given, is_streaming=True).selection == both


def test_offsets_by_partition() -> None:
    given = {**READ, "startingOffsets": '{"orders/0": 42, "orders/1": -1, "orders/2": -2}'}
    assert parse_read_options(given, is_streaming=True).start == Position(
        LATEST, {("orders", 0): 42, ("orders", 1): LATEST, ("orders", 2): EARLIEST}
    )


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"url": ""}, "url is required"),
        ({"url": "http://x"}, r"url is trivium\[s\]://"),
        ({"tlsCa": "ca.pem"}, "tlsCa needs a url that begins with triviums://"),
        ({"url": "triviums://x", "tlsKey": "k"}, "a client key needs its certificate"),
        ({"url": "triviums://x", "tlsInsecure": "yes"}, "tlsInsecure is true or false"),
        ({"password": "p", "passwordFile": "f"}, "password and passwordFile exclude each other"),
        ({"stream": " "}, "stream is required"),
        ({"stream": "a,,b"}, "option stream"),
        ({"stream": "a,b,a"}, "twice"),
        ({"subscribe": "a"}, "a read has one of the options stream, .*, not stream and subscribe"),
        ({"startingOffsets": "group"}, "which needs option group"),
        ({"endingTimestamp": "1"}, "unknown option endingTimestamp"),
        ({"startingTimestamp": "-1"}, "startingTimestamp is in milliseconds"),
        ({"startingTimestamp": "soon"}, "startingTimestamp is in milliseconds"),
        ({"startingOffsetsByTimestamp": "1"}, "startingOffsetsByTimestamp is JSON"),
        ({"startingOffsetsByTimestamp": '{"orders/0": -1}'}, "-1 is not milliseconds"),
        ({"startingOffsetsByTimestamp": '{"other/0": 1}'}, "'other/0'"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "is error or latest"),
        ({"minPartitions": "0"}, "minPartitions is a number of tasks"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition is a number of records"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger is a number of bytes"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay needs option minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "15"}, "maxTriggerDelay is a time"),
        ({"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "7"}, "more than maxOffsets"),
        ({"failOnDataLos": "false"}, "unknown option failOnDataLos"),
        ({"endingOffsets": "latest"}, "unknown option endingOffsets"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is a number"),
        ({"maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger is a number"),
        ({"retryTimeout": "-1"}, "retryTimeout"),
        ({"retryTimeout": "nan"}, "retryTimeout"),
        ({"group": ""}, "group"),
        ({"startingOffsets": "newest"}, "startingOffsets"),
        ({"startingOffsets": "[1]"}, r'like {"orders/0": 42} or {"orders": {"0": 42}}'),
        ({"startingOffsets": "{}"}, "startingOffsets is earliest, latest or JSON"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "'other/0' is not a partition"),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, "'orders/x' is not a partition"),
        ({"startingOffsets": '{"orders": {"0": "1"}}'}, "'1' is not an offset"),
        ({"startingOffsets": '{"orders": {"0": 1}, "orders/0": 2}'}, "names orders/0 twice"),
        ({"startingOffsets": '{"orders": 1}'}, "'orders'"),
        ({"startingOffsets": '{"other/0": 1}'}, "'other/0'"),
        ({"startingOffsets": '{"orders/0": -3}'}, "-3"),
        ({"startingOffsets": '{"orders/0": true}'}, "True"),
        ({"startingOffsets": '{"orders/0": 1.5}'}, "1.5"),
    ],
)
def test_wrong_read_option_is_named(changed: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_read_options({**READ, **changed}, is_streaming=True)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_streaming_option_in_a_batch_query(name: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option {name}"):
        parse_read_options({**READ, name: "1"}, is_streaming=False)


def test_a_batch_query_has_a_group_to_begin_at_only() -> None:
    with pytest.raises(OptionError, match="option group: a batch query commits nothing"):
        parse_read_options({**READ, "group": "g"}, is_streaming=False)
    given = {**READ, "group": "g", "startingOffsets": "group"}
    assert parse_read_options(given, is_streaming=False).start == Position(COMMITTED)


def test_streams_by_a_pattern() -> None:
    given = {"url": URL, "subscribePattern": "orders-.*", "startingOffsets": '{"orders-a/0": 3}'}
    options = parse_read_options(given, is_streaming=True)
    assert options.selection == Selection(pattern=re.compile("orders-.*"))
    assert options.start.offsets == {("orders-a", 0): 3}
    with pytest.raises(OptionError, match="no regular expression"):
        parse_read_options({"url": URL, "subscribePattern": "("}, is_streaming=True)
    with pytest.raises(OptionError, match="'others/0' is not a partition"):
        parse_read_options({**given, "startingOffsets": '{"others/0": 3}'}, is_streaming=True)


def test_partitions_that_are_assigned() -> None:
    given = {"url": URL, "assign": '{"orders": [0, 2], "a": [1]}'}
    selection = parse_read_options(given, is_streaming=True).selection
    assert selection.streams == ("orders", "a")
    assert selection.partitions == {"orders": frozenset([0, 2]), "a": frozenset([1])}
    with pytest.raises(OptionError, match="'orders/1' is not a partition"):
        parse_read_options({**given, "startingOffsets": '{"orders/1": 3}'}, is_streaming=True)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "orders", '{"a": 1}', '{"a": []}', '{"a": [-1]}', '{"a": ["0"]}', "3"]
)
def test_wrong_assignment(text: str) -> None:
    with pytest.raises(OptionError, match="option assign is JSON like"):
        parse_read_options({"url": URL, "assign": text}, is_streaming=True)


def test_times_come_before_offsets() -> None:
    given = {**READ, "startingOffsets": "earliest", "endingOffsets": '{"orders/0": 3}'}
    given |= {"startingOffsetsByTimestamp": '{"orders/0": 5}', "endingTimestamp": "9"}
    options = parse_read_options(given, is_streaming=False)
    assert options.start == Position(EARLIEST, times={("orders", 0): 5}, is_strict=True)
    assert options.end == Position(LATEST, time=9)
    given |= {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}
    assert parse_read_options(given, is_streaming=False).start == Position(EARLIEST, time=7)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), (" 15 m ", 900), ("2h", 7200), ("1d", 86400)]
)
def test_delays_have_units(text: str, seconds: float) -> None:
    given = {**READ, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    limits = parse_read_options(given, is_streaming=True).limits
    assert limits == Limits(min_offsets=5, max_delay=seconds)


def test_url_is_never_shown() -> None:
    assert "secret" not in repr(parse_read_options(READ, is_streaming=True))
    assert "secret" not in repr(parse_write_options({"url": URL}, is_streaming=True))
    with pytest.raises(OptionError) as error:
        parse_write_options({"url": "http://user:secret@host"}, is_streaming=True)
    assert "secret" not in str(error.value)


def test_write_options() -> None:
    plain = parse_write_options(
        {"url": URL, "checkpointLocation": "/x", "queryName": "q"}, is_streaming=True
    )
    assert (plain.exchange, plain.stream, plain.topic) == ("amq.topic", None, None)
    assert (
        parse_write_options({"url": URL, "stream": "orders"}, is_streaming=True).stream == "orders"
    )
    to_exchange = parse_write_options(
        {"url": URL, "exchange": "", "topic": "a/b"}, is_streaming=True
    )
    assert (to_exchange.exchange, to_exchange.topic) == ("", "a/b")


def test_wrong_write_options() -> None:
    for other in ({"exchange": "b"}, {"topic": "b"}):
        with pytest.raises(OptionError, match="a sink publishes to"):
            parse_write_options({"url": URL, "stream": "a", **other}, is_streaming=True)
    with pytest.raises(OptionError, match="unknown option path"):
        parse_write_options({"url": URL, "path": "/x"}, is_streaming=True)


@pytest.mark.parametrize("partition", [("orders", 0), ("a/b", 17), ("a/0", 1), ("ü", 1023)])
def test_partition_text_is_a_round_trip(partition: tuple[str, int]) -> None:
    assert parse_partition(format_partition(partition)) == partition


@pytest.mark.parametrize("text", ["", "orders", "/0", "orders/", "orders/-1", "orders/x", "a/²"])
def test_text_that_is_no_partition(text: str) -> None:
    assert parse_partition(text) is None


def test_a_sink_is_exactly_once_unless_told_otherwise() -> None:
    given = {"url": URL, "topic": "a"}
    assert parse_write_options(given, is_streaming=True).exactly_once
    off = parse_write_options({**given, "exactlyOnce": "false"}, is_streaming=True)
    assert not off.exactly_once
    assert parse_write_options(given, is_streaming=False).exactly_once
    with pytest.raises(OptionError, match="exactlyOnce is true or false"):
        parse_write_options({**given, "exactlyOnce": "yes"}, is_streaming=True)


def test_access_is_read_from_the_options_of_every_kind() -> None:
    given = {
        "url": "triviums://host",
        "username": "ann",
        "passwordFile": "/run/token",
        "tlsCa": "ca.pem",
        "tlsServerName": "broker",
    }
    tls = ClientTls(ca="ca.pem", server_name="broker")
    wanted = Access("triviums://host", "ann", None, "/run/token", tls)
    for is_streaming in (False, True):
        read = parse_read_options(given | {"stream": "s"}, is_streaming)
        assert read.access == parse_write_options(given, is_streaming).access == wanted
    assert parse_access(given) == wanted


def test_secrets_are_not_shown() -> None:
    given = {**READ, "password": "hidden", "username": "ann"}
    for options in (parse_read_options(given, True), parse_write_options({"url": URL}, True)):
        assert "secret" not in repr(options)
        assert "hidden" not in repr(options)


def test_what_a_batch_query_writes_may_be_a_micro_batch() -> None:
    given = {"url": URL, "topic": "a"}
    assert parse_write_options(given, is_streaming=False).transaction is None
    given |= {"transactionProducer": "p", "transactionNumber": "7"}
    assert parse_write_options(given, is_streaming=False).transaction == ("p", 7)
    for changed, named in (
        ({"transactionNumber": "-1"}, "is the number of a transaction"),
        ({"transactionProducer": ""}, "transactionProducer is required"),
    ):
        with pytest.raises(OptionError, match=named):
            parse_write_options({**given, **changed}, is_streaming=False)
    # They are not for users.
    with pytest.raises(
        OptionError, match=r"the options are .*tlsServerName, topic, url, username$"
    ):
        parse_write_options({"url": URL, "path": "/x"}, is_streaming=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "1"),
        ("endingOffsetsByTimestamp", '{"orders/0": 1}'),
        ("pushFilters", "true"),
    ],
)
def test_a_load_takes_the_options_of_batch_queries(name: str, value: str) -> None:
    source = TriviumDataSource(CaseInsensitiveDict({**READ, name: value}))
    schema = source.schema()
    assert isinstance(schema, StructType)
    assert tuple(schema.names) == COLUMNS
    with pytest.raises(OptionError, match="unknown option other"):
        TriviumDataSource(CaseInsensitiveDict({**READ, name: value, "other": "x"})).schema()


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_numbers_by_partition_may_have_the_form_of_kafkas_source(name: str) -> None:
    given = [{**READ, name: text} for text in ('{"orders/0": 7}', '{"orders": {"0": 7}}')]
    ours, theirs = (parse_read_options(each, is_streaming=True).start for each in given)
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("startingOffsets", "latest", r"startingOffsets of a batch query is not latest \(-1\)"),
        ("startingOffsets", '{"orders/0": 1, "orders/1": -1}', "is not latest"),
        ("endingOffsets", "earliest", r"endingOffsets of a batch query is not earliest \(-2\)"),
        ("endingOffsets", '{"orders": {"0": -2}}', "is not earliest"),
    ],
)
def test_a_batch_query_neither_begins_at_the_end_nor_ends_at_the_beginning(
    name: str, value: str, shown: str
) -> None:
    with pytest.raises(OptionError, match=shown):
        parse_read_options({**READ, name: value}, is_streaming=False)
    if name == "startingOffsets":
        parse_read_options({**READ, name: value}, is_streaming=True)
