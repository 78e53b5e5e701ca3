"""Publishing to topics, as MQTT clients do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

from trivium.management.endpoints import CLIENTS, ENTERED, LARGE, BadRequest
from trivium.management.publishing import message_of, publish
from trivium.management.rest.gateway import pass_on_trace, payload_of
from trivium.management.rest.operations import body_of, operation
from trivium.management.rest.publications import KEY, Outcome, Published, outcome_of, publish_once
from trivium.management.rest.schema import About
from trivium.messages.delivery import DELAY_HEADER
from trivium.messages.message import Properties
from trivium.messages.topics import MAX_LEVELS, key_of
from trivium.routing.retained import RETAINING_EXCHANGE
from trivium.security.permissions import WRITE

if TYPE_CHECKING:
    from trivium.management.calls import Call

#: Bytes of a topic (MQTT-1.5.4), and user properties of a message.
MAX_TOPIC_BYTES: Final = 65_535
MAX_USER_PROPERTIES: Final = 100
#: Seconds of the longest expiry (MQTT5 3.3.2.3.3).
MAX_EXPIRY: Final = (1 << 32) - 1

_Topic = Annotated[str, About(text="no wildcards, and not of the broker", shortest=1)]
_Pair = Annotated[list[str], About(text="name and value", shortest=2, longest=2)]
#: What keys of requests are remembered for: no name of an exchange.
_PLACE: Final = "\0topics"


@dataclass(frozen=True, slots=True)
class TopicPublication:
    """A message for a topic. Its payload is one of three, or empty."""

    topic: _Topic
    payload: str | None = None
    payload_base64: str | None = None
    payload_json: Annotated[object, About(text="any JSON; the content type says so")] = None
    qos: Annotated[int, About(least=0, most=2)] = 0
    retain: Annotated[bool, About(text="keep it for the topic; an empty one clears it")] = False
    expiry_seconds: Annotated[int | None, About(least=0, most=MAX_EXPIRY)] = None
    content_type: Annotated[str | None, About(longest=255)] = None
    response_topic: _Topic | None = None
    correlation_data: Annotated[str | None, About(longest=65_535)] = None
    user_properties: Annotated[
        list[_Pair], About(text="in their order", longest=MAX_USER_PROPERTIES)
    ] = field(default_factory=list)


def key_of_topic(topic: str) -> bytes:
    """The routing key of a topic name. Raises BadRequest."""
    name = topic.encode()
    if len(name) > MAX_TOPIC_BYTES or topic.count("/") >= MAX_LEVELS:
        bounds = f"{MAX_TOPIC_BYTES} bytes and {MAX_LEVELS} levels"
        raise BadRequest(f"a topic has at most {bounds}")
    # MQTT-3.3.2-2, MQTT-1.5.4-2
    if set(topic) & {"+", "#", "\0"}:
        raise BadRequest("a topic that is published to has no wildcards")
    return key_of(name)


def publish_one(call: Call) -> None:
    """Publish a message; answered once it is as durable as its QoS says."""
    given = body_of(call, TopicPublication)
    key = key_of_topic(given.topic)
    # MQTT5 4.7.2
    if given.topic.startswith("$"):
        raise BadRequest("topics that begin with '$' are the broker's")
    call.access.require_topic(WRITE, RETAINING_EXCHANGE, key)
    payload = payload_of(given)
    properties = _properties(given)
    pass_on_trace(call, properties)

    def publish_one(_: int) -> tuple[Outcome, int]:
        kept = call.vhost.retained.sequence
        message = message_of(
            call.broker,
            call.vhost,
            RETAINING_EXCHANGE,
            key,
            properties,
            payload,
            given.qos,
            retain=given.retain,
        )
        outcome = outcome_of(call, publish(call.vhost, message))
        # One that is delayed is retained when its time has come.
        if given.retain and payload and properties.header(DELAY_HEADER) is None:
            is_retained = call.vhost.retained.sequence != kept
            outcome = outcome if is_retained or outcome == "rejected" else "unretained"
        return outcome, 1

    publish_once(call, _PLACE, [len(payload)], publish_one)


def _properties(given: TopicPublication) -> Properties:
    kind = given.content_type
    if kind is None and given.payload_json is not None:
        kind = "application/json"
    reply_to = given.response_topic
    correlation = given.correlation_data
    expiry = given.expiry_seconds
    return Properties(
        content_type=kind,
        correlation_id=None if correlation is None else correlation.encode(),
        reply_to_topic=None if reply_to is None else key_of_topic(reply_to),
        expiration=None if expiry is None else expiry * 1000,
        payload_is_text=given.payload_base64 is None,
        headers=[(name, value) for name, value in given.user_properties],
    )


ENDPOINTS: Final = (
    operation(
        "POST",
        "vhosts/{vhost}/topics/messages",
        publish_one,
        "Publish to a topic, and retain it",
        tags=CLIENTS,
        vhost=ENTERED,
        body=TopicPublication,
        result=Published,
        statuses=(202,),
        most_bytes=LARGE,
        headers=(KEY,),
    ),
)
