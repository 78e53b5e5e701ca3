"""paho-mqtt with what is new in MQTT 5."""

from __future__ import annotations

import time

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from interop.mqtt import HOUR, V5, V311, Mqtt, expect_nothing_before, given, properties


def received_properties(found: Properties | None) -> dict[str, object]:
    return {str(name): value for name, value in given(found).json().items()}


def test_mqtt_3_1_2_assigned_client_identifier(mqtt_port: int) -> None:
    with Mqtt(mqtt_port) as client:
        assert received_properties(client.connack.properties)["AssignedClientIdentifier"]


def test_mqtt_3_3_2_3_properties_come_back_as_they_were(mqtt_port: int, name: str) -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ключ", "значение")]
    with Mqtt(mqtt_port, name) as client:
        client.subscribe(name, 2)
        client.publish(
            name,
            b"{}",
            2,
            UserProperty=pairs,
            ContentType="application/json; charset=utf-8",
            PayloadFormatIndicator=1,
            CorrelationData=bytes(range(256)),
            ResponseTopic=f"{name}/answer",
        )
        found = given(client.receive().properties)
        assert found.UserProperty == pairs, "order and duplicates (MQTT-3.3.2-18)"
        assert found.ContentType == "application/json; charset=utf-8"
        assert found.PayloadFormatIndicator == 1
        assert found.CorrelationData == bytes(range(256))
        assert found.ResponseTopic == f"{name}/answer"


def test_retained_message_keeps_its_properties(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client:
        client.publish(name, b"x", retain=True, UserProperty=[("a", "b"), ("a", "b")])
        client.subscribe(name, 1)
        found = given(client.receive().properties)
        assert found.UserProperty == [("a", "b"), ("a", "b")]


def test_mqtt_4_10_request_and_response(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, f"{name}s") as server, Mqtt(mqtt_port, f"{name}c") as client:
        server.subscribe(f"{name}/request", 1)
        client.subscribe(f"{name}/answers/me", 1)
        client.publish(
            f"{name}/request",
            b"20",
            ResponseTopic=f"{name}/answers/me",
            CorrelationData=b"\x00\xff",
        )
        request = server.receive()
        asked = given(request.properties)
        server.publish(
            asked.ResponseTopic,
            b"%d" % (int(request.payload) + 1),
            CorrelationData=asked.CorrelationData,
        )
        answer = client.receive()
        assert (answer.payload, given(answer.properties).CorrelationData) == (b"21", b"\x00\xff")


def test_mqtt_3_3_2_6_expiry_that_is_forwarded_is_the_time_remaining(
    mqtt_port: int, name: str
) -> None:
    first = Mqtt(mqtt_port, name, session=HOUR)
    first.subscribe(f"{name}/#", 1)
    first.close()
    with Mqtt(mqtt_port, f"{name}p") as publisher:
        publisher.publish(f"{name}/long", b"", MessageExpiryInterval=2**32 - 1)
        publisher.publish(f"{name}/short", b"", MessageExpiryInterval=1)
        publisher.publish(f"{name}/hour", b"", MessageExpiryInterval=3600)
        publisher.publish(f"{name}/ever", b"")
    # That a second passes is what is tested.
    time.sleep(2.1)
    with Mqtt(mqtt_port, name, session=HOUR) as again:
        found = {}
        for _ in range(3):
            message = again.receive()
            found[message.topic.rpartition("/")[2]] = received_properties(message.properties).get(
                "MessageExpiryInterval"
            )
        expect_nothing_before(again, again, f"{name}/end")
    assert found.keys() == {"long", "hour", "ever"}, "the one of a second has expired"
    assert found["ever"] is None
    assert isinstance(found["hour"], int)
    assert 3500 < found["hour"] <= 3598
    assert isinstance(found["long"], int)
    assert 2**32 - 100 < found["long"] <= 2**32 - 3
    Mqtt(mqtt_port, name).close()


def test_expired_retained_message_is_not_delivered(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client:
        client.publish(f"{name}/a", b"short", retain=True, MessageExpiryInterval=1)
        time.sleep(2.1)
        client.subscribe(f"{name}/#", 1)
        expect_nothing_before(client, client, f"{name}/a")


def test_mqtt_3_3_4_3_subscription_identifiers(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client, Mqtt(mqtt_port, f"{name}o") as other:
        client.subscribe(f"{name}/a", 1, identifier=7)
        client.subscribe(f"{name}/+", 0, identifier=268_435_455)
        other.subscribe(f"{name}/#", 0, identifier=3)
        other.publish(f"{name}/a", b"x", 1)
        # One copy with both identifiers, or one copy per subscription: the standard allows both.
        found = list(given(client.receive().properties).SubscriptionIdentifier)
        if len(found) < 2:
            found += given(client.receive().properties).SubscriptionIdentifier
        assert sorted(found) == [7, 268_435_455]
        expect_nothing_before(client, other, f"{name}/b")
        assert given(other.receive().properties).SubscriptionIdentifier == [3], "only its own"


def test_mqtt_3_3_2_8_topic_alias_of_the_client(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client, Mqtt(mqtt_port, f"{name}s") as subscriber:
        assert given(client.connack.properties).TopicAliasMaximum > 0
        subscriber.subscribe(f"{name}/#", 1)
        client.publish(f"{name}/a", b"1", TopicAlias=1)
        client.publish("", b"2", TopicAlias=1)
        client.publish(f"{name}/b", b"3", TopicAlias=1)
        client.publish("", b"4", TopicAlias=1)
        found = [(m.topic, bytes(m.payload)) for m in (subscriber.receive() for _ in range(4))]
        assert found == [
            (f"{name}/a", b"1"),
            (f"{name}/a", b"2"),
            (f"{name}/b", b"3"),
            (f"{name}/b", b"4"),
        ]


def test_mqtt_3_8_3_3_no_local(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client, Mqtt(mqtt_port, f"{name}o") as other:
        client.subscribe(name, 1, noLocal=True)
        client.publish(name, b"own")
        other.publish(name, b"other's")
        assert client.receive().payload == b"other's"


def test_mqtt_3_3_1_13_retain_as_published(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client:
        client.subscribe(name, 1, retainAsPublished=True)
        client.publish(name, b"1", retain=True)
        client.publish(name, b"2")
        assert [client.receive().retain, client.receive().retain] == [True, False]


def test_mqtt_3_3_1_9_retain_handling(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name) as client:
        client.publish(f"{name}/a", b"kept", retain=True)
        client.subscribe(f"{name}/a", 1, retainHandling=2)
        expect_nothing_before(client, client, f"{name}/a")
        client.subscribe(f"{name}/a", 1, retainHandling=1)
        expect_nothing_before(client, client, f"{name}/a")
        client.unsubscribe(f"{name}/a")
        client.subscribe(f"{name}/a", 1, retainHandling=1)
        assert client.receive().payload == b"kept"
        client.subscribe(f"{name}/a", 1, retainHandling=0)
        assert client.receive().payload == b"kept"


def test_mqtt_3_11_3_unsubscribe_says_whether_there_was_a_subscription(
    mqtt_port: int, name: str
) -> None:
    with Mqtt(mqtt_port, name) as client:
        client.subscribe(name)
        assert client.unsubscribe(name) == [0]
        assert client.unsubscribe(name) == [0x11]


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_4_2_1_publish_without_subscribers_is_a_success(
    mqtt_port: int, name: str, qos: int
) -> None:
    with Mqtt(mqtt_port, name) as client:
        assert client.publish(f"{name}/nobody", b"x", qos) in (0, 0x10)


def test_mqtt_3_1_2_23_session_ends_with_its_expiry(mqtt_port: int, name: str) -> None:
    first = Mqtt(mqtt_port, name, session=1)
    first.subscribe(name, 1)
    first.close()
    time.sleep(3)
    with Mqtt(mqtt_port, name, session=HOUR, clean=False) as again:
        assert not again.connack.session_present
    Mqtt(mqtt_port, name).close()


def test_mqtt_3_14_2_disconnect_changes_the_session_expiry(mqtt_port: int, name: str) -> None:
    first = Mqtt(mqtt_port, name, session=HOUR)
    first.subscribe(name, 1)
    first.close(SessionExpiryInterval=0)
    with Mqtt(mqtt_port, name, session=HOUR, clean=False) as again:
        assert not again.connack.session_present
    Mqtt(mqtt_port, name).close()


def test_mqtt_3_14_2_disconnect_with_will(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, f"{name}w") as watcher:
        watcher.subscribe(name, 1)
        mortal = Mqtt(mqtt_port, name, will=(name, b"gone", 1, False))
        mortal.close(ReasonCode(PacketTypes.DISCONNECT, identifier=0x04))
        assert watcher.receive().payload == b"gone"


def test_mqtt_3_1_3_9_will_waits_for_its_delay(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, f"{name}w") as watcher:
        watcher.subscribe(f"{name}/#", 1)
        delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=1, ContentType="text/will")
        for wait in (False, True):
            mortal = Mqtt(
                mqtt_port,
                name,
                session=HOUR,
                will=(f"{name}/will", b"gone", 1, False),
                will_properties=delay,
            )
            mortal.drop()
            if not wait:
                with Mqtt(mqtt_port, name, session=HOUR):
                    pass
        message = watcher.receive()
        assert (message.topic, message.payload) == (f"{name}/will", b"gone")
        assert received_properties(message.properties)["ContentType"] == "text/will"
        expect_nothing_before(watcher, watcher, f"{name}/end")
    Mqtt(mqtt_port, name).close()


def test_mqtt_3_1_2_11_receive_maximum_bounds_what_is_unacknowledged(
    mqtt_port: int, name: str
) -> None:
    with Mqtt(mqtt_port, name, acknowledges=False, ReceiveMaximum=2) as client:
        client.subscribe(f"{name}/#", 1)
        with Mqtt(mqtt_port, f"{name}p") as publisher:
            for i in range(6):
                publisher.publish(f"{name}/q", b"%d" % i)
            publisher.publish(f"{name}/now", b"QoS 0 needs no place", 0)
        held = [client.receive() for _ in range(3)]
        assert [m.qos for m in held] == [1, 1, 0], "the third of QoS 1 must wait"
        payloads = [bytes(m.payload) for m in held[:2]]
        client.ack(held[0])
        client.ack(held[1])
        for _ in range(4):
            message = client.receive()
            payloads.append(bytes(message.payload))
            client.ack(message)
        assert payloads == [b"%d" % i for i in range(6)]


def test_mqtt_3_1_2_25_too_large_for_the_client_is_not_sent(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, name, MaximumPacketSize=200) as client, Mqtt(mqtt_port) as publisher:
        client.subscribe(name, 1)
        publisher.publish(name, b"x" * 300)
        expect_nothing_before(client, publisher, name)


def test_shared_subscription_gives_each_message_to_one_client(mqtt_port: int, name: str) -> None:
    with Mqtt(mqtt_port, f"{name}p") as publisher:
        said = received_properties(publisher.connack.properties)
        if said.get("SharedSubscriptionAvailable", 1) == 0:
            assert publisher.subscribe(f"$share/g/{name}", 1) == 0x9E, "MQTT-3.2.2-13"
            return
        clients = [Mqtt(mqtt_port, f"{name}{i}") for i in range(3)]
        for client in clients:
            client.subscribe(f"$share/g/{name}/a", 1)
            client.subscribe(f"{name}/end", 1)
        for i in range(90):
            publisher.publish(f"{name}/a", b"%d" % i)
        publisher.publish(f"{name}/end", b"end")
        shares: list[list[int]] = []
        for client in clients:
            share: list[int] = []
            while (message := client.receive()).topic != f"{name}/end":
                share.append(int(message.payload))
            shares.append(share)
            client.close()
        assert sorted(i for share in shares for i in share) == list(range(90))
        assert all(shares), "each takes part"


@pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])
def test_wrong_password_is_refused(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--against") == "mosquitto":
        pytest.skip("it is configured to ask for no password")
    client = Mqtt(mqtt_port, name, version=version, connects=False)
    client.client.username_pw_set("guest", "wrong")
    answer = client.connect()
    client.client.loop_stop()
    assert answer.reason.value in (0x86, 0x87), "bad user name or password, or not authorized"
