"""paho-mqtt with MQTT 3.1.1 and 5: what both versions have in common."""

from __future__ import annotations

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from interop.mqtt import HOUR, V5, V31, V311, Mqtt, expect_nothing_before

VERSIONS = pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])


@VERSIONS
def test_connect_without_a_session(mqtt_port: int, name: str, version: MQTTProtocolVersion) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        assert client.connack.reason.value == 0
        assert not client.connack.session_present


@VERSIONS
def test_clients_without_an_id_do_not_disturb_each_other(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, version=version) as one, Mqtt(mqtt_port, version=version) as other:
        one.subscribe(name)
        other.publish(name, b"x")
        assert one.receive().payload == b"x"


@pytest.mark.parametrize("version", [V31, V311, V5], ids=["v31", "v311", "v5"])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_mqtt_3_8_4_8_delivered_qos_is_the_lower_one(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, published: int, subscribed: int
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        assert client.subscribe(f"{name}/a", subscribed) == subscribed
        client.publish(f"{name}/a", b"payload", published)
        message = client.receive()
        assert (message.topic, message.payload) == (f"{name}/a", b"payload")
        assert message.qos == min(published, subscribed)
        assert not message.dup
        assert not message.retain


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_6_0_6_order_is_kept(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, qos: int
) -> None:
    count = 500
    with (
        Mqtt(mqtt_port, f"{name}s", version=version) as subscriber,
        Mqtt(mqtt_port, f"{name}p", version=version, inflight=20) as publisher,
    ):
        subscriber.subscribe(name, qos)
        infos = [publisher.publish_later(name, b"%d" % i, qos) for i in range(count)]
        assert subscriber.receive_payloads(count) == [b"%d" % i for i in range(count)]
        for info in infos:
            info.wait_for_publish(20)
        expect_nothing_before(subscriber, publisher, name)


@VERSIONS
@pytest.mark.parametrize(
    "payload",
    [b"", bytes(range(256)), b"x" * 127, b"x" * 128, b"x" * 1_000_000],
    ids=["empty", "binary", "127", "128", "1MB"],
)
def test_payload_comes_back_to_the_byte(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, payload: bytes
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        client.subscribe(name, 1)
        client.publish(name, payload)
        assert bytes(client.receive().payload) == payload


@VERSIONS
@pytest.mark.parametrize(
    "suffix", ["a//b", "/", "a.b/c.d", "日本/überall/🌍", "a b/c", "%2B/%23", "$x/y", "*/>"]
)
def test_topic_comes_back_as_it_was(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, suffix: str
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        topic = f"{name}/{suffix}"
        client.subscribe(f"{name}/#", 1)
        client.publish(topic, b"1")
        assert client.receive().topic == topic
        client.unsubscribe(f"{name}/#")
        client.subscribe(topic, 1)
        client.publish(topic, b"2")
        assert client.receive().topic == topic


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_match"),
    [
        ("{}/a", "{}/a", True),
        ("{}/a", "{}/A", False),
        ("{}/a", "{}/a/", False),
        ("{}/+", "{}/a", True),
        ("{}/+", "{}/", True),
        ("{}/+", "{}", False),
        ("{}/+", "{}/a/b", False),
        ("{}/#", "{}", True),
        ("{}/#", "{}/a/b/c", True),
        ("{}/+/c", "{}/b/c", True),
        ("{}/+/c", "{}//c", True),
        ("{}/+/+/#", "{}/a", False),
        ("{}/+/+/#", "{}/a/b", True),
        ("+/{}", "/{}", True),
        ("+/{}", "$y/{}", False),
        ("/+/{}", "/$x/{}", True),
    ],
)
def test_mqtt_4_7_topic_filters(
    mqtt_port: int, name: str, topic_filter: str, topic: str, is_match: bool
) -> None:
    with Mqtt(mqtt_port, name, version=V311) as client:
        client.subscribe(f"{name}/end", 1)
        client.subscribe(topic_filter.format(name), 1)
        client.publish(topic.format(name), b"it")
        client.publish(f"{name}/end", b"marker")
        payloads = client.receive_payloads(2 if is_match else 1)
        assert payloads == ([b"it", b"marker"] if is_match else [b"marker"])


@VERSIONS
def test_mqtt_3_3_1_5_retained_message_reaches_later_subscribers(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        client.publish(f"{name}/a", b"old", retain=True)
        client.publish(f"{name}/a", b"new", retain=True)
        client.publish(f"{name}/b/c", b"deep", 2, retain=True)
        client.publish(f"{name}/a", b"not retained")
        client.subscribe(f"{name}/#", 1)
        found = {
            m.topic: (bytes(m.payload), m.retain, m.qos)
            for m in (client.receive(), client.receive())
        }
        assert found == {
            f"{name}/a": (b"new", True, 1),
            f"{name}/b/c": (b"deep", True, 1),
        }
        client.publish(f"{name}/a", b"live", retain=True)
        assert not client.receive().retain, "a live message is not marked (MQTT-3.3.1-9)"


@VERSIONS
def test_mqtt_3_3_1_6_empty_retained_message_clears(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        client.publish(f"{name}/a", b"kept", retain=True)
        client.publish(f"{name}/a", b"", retain=True)
        client.subscribe(f"{name}/#", 1)
        expect_nothing_before(client, client, f"{name}/a")


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_8_will_is_published_when_the_connection_is_lost(
    mqtt_port: int, name: str, version: MQTTProtocolVersion, qos: int
) -> None:
    with Mqtt(mqtt_port, f"{name}s", version=version) as watcher:
        watcher.subscribe(f"{name}/will", 2)
        mortal = Mqtt(mqtt_port, name, version=version, will=(f"{name}/will", b"gone", qos, True))
        mortal.drop()
        message = watcher.receive()
        assert (message.topic, message.payload, message.qos) == (f"{name}/will", b"gone", qos)
        watcher.unsubscribe(f"{name}/will")
        watcher.subscribe(f"{name}/will")
        assert watcher.receive().retain, "the will was to be retained (MQTT-3.1.2-17)"


@VERSIONS
def test_mqtt_3_1_2_10_will_is_dropped_by_disconnect(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, f"{name}s", version=version) as watcher:
        watcher.subscribe(f"{name}/will", 1)
        Mqtt(mqtt_port, name, version=version, will=(f"{name}/will", b"gone", 1, False)).close()
        # A second connection of the same id is answered once the first is done with.
        with Mqtt(mqtt_port, name, version=version) as again:
            expect_nothing_before(watcher, again, f"{name}/will")


@VERSIONS
def test_mqtt_3_10_4_unsubscribe_ends_delivery(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        client.subscribe(f"{name}/a", 1)
        client.subscribe(f"{name}/b", 1)
        client.unsubscribe(f"{name}/a")
        client.publish(f"{name}/a", b"unwanted")
        expect_nothing_before(client, client, f"{name}/b")


@VERSIONS
def test_mqtt_3_1_2_5_session_keeps_subscriptions_and_messages(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    first = Mqtt(mqtt_port, name, version=version, session=HOUR)
    assert not first.connack.session_present
    first.subscribe(f"{name}/#", 2)
    first.close()
    with Mqtt(mqtt_port, f"{name}p", version=version) as publisher:
        for i in range(60):
            publisher.publish(f"{name}/{i}", b"%d" % i, 1 + i % 2)
        with Mqtt(mqtt_port, name, version=version, session=HOUR) as again:
            assert again.connack.session_present
            messages = [again.receive() for _ in range(60)]
            # A client hands a message of QoS 2 on when it is released, so order holds per QoS.
            for qos in (1, 2):
                topics = [m.topic for m in messages if m.qos == qos]
                assert topics == [f"{name}/{i}" for i in range(qos - 1, 60, 2)]
            expect_nothing_before(again, publisher, f"{name}/end")
    with Mqtt(mqtt_port, name, version=version, session=HOUR) as third:
        assert third.connack.session_present
        expect_nothing_before(third, third, f"{name}/end")
    Mqtt(mqtt_port, name, version=version).close()


@VERSIONS
def test_mqtt_3_1_2_6_clean_session_discards_the_old_one(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    first = Mqtt(mqtt_port, name, version=version, session=HOUR)
    first.subscribe(f"{name}/a", 1)
    first.close()
    with Mqtt(mqtt_port, f"{name}p", version=version) as publisher:
        publisher.publish(f"{name}/a", b"lost with the session")
        with Mqtt(mqtt_port, name, version=version) as clean:
            assert not clean.connack.session_present
            publisher.publish(f"{name}/a", b"nobody subscribed")
            clean.subscribe(f"{name}/b", 1)
            expect_nothing_before(clean, publisher, f"{name}/b")
    with Mqtt(mqtt_port, name, version=version, session=HOUR, clean=False) as later:
        assert not later.connack.session_present
    Mqtt(mqtt_port, name, version=version).close()


@VERSIONS
def test_mqtt_3_3_1_1_unacknowledged_message_comes_again_with_dup(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    first = Mqtt(mqtt_port, name, version=version, session=HOUR, acknowledges=False)
    first.subscribe(name, 1)
    with Mqtt(mqtt_port, f"{name}p", version=version) as publisher:
        publisher.publish(name, b"once more")
        assert not first.receive().dup
        first.drop()
        with Mqtt(mqtt_port, name, version=version, session=HOUR) as again:
            message = again.receive()
            assert (message.payload, message.dup) == (b"once more", True)
            expect_nothing_before(again, publisher, name)


@VERSIONS
def test_mqtt_4_3_3_qos_2_goes_on_after_a_lost_connection(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    count = 40
    subscriber = Mqtt(mqtt_port, name, version=version, session=HOUR)
    subscriber.subscribe(name, 2)
    with Mqtt(mqtt_port, f"{name}p", version=version) as publisher:
        for i in range(count):
            publisher.publish(name, b"%d" % i, 2)
            if i % 4 == 0:
                # At whatever point the exchange of the last messages is.
                subscriber.drop()
                assert subscriber.connect().session_present
        payloads = [int(payload) for payload in subscriber.receive_payloads(count)]
        assert sorted(payloads) == list(range(count)), "each exactly once"
        expect_nothing_before(subscriber, publisher, name)
    subscriber.close()


@VERSIONS
def test_mqtt_3_1_4_2_second_connection_of_an_id_ends_the_first(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    first = Mqtt(mqtt_port, name, version=version, session=HOUR)
    first.subscribe(f"{name}/a", 1)
    with Mqtt(mqtt_port, name, version=version, session=HOUR) as second:
        reason = first.disconnected()
        assert reason == 0x8E or version == V311, "session taken over"
        assert second.connack.session_present
        second.publish(f"{name}/a", b"x")
        assert second.receive().payload == b"x"
    first.client.loop_stop()
    Mqtt(mqtt_port, name, version=version).close()


@VERSIONS
def test_fan_out_reaches_every_subscriber(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    clients = [Mqtt(mqtt_port, f"{name}{i}", version=version) for i in range(20)]
    try:
        for i, client in enumerate(clients):
            client.subscribe(name, i % 3)
        for i in range(50):
            clients[0].publish(name, b"%d" % i, 2)
        for i, client in enumerate(clients):
            messages = [client.receive() for _ in range(50)]
            assert [bytes(m.payload) for m in messages] == [b"%d" % n for n in range(50)]
            assert {m.qos for m in messages} == {i % 3}
    finally:
        for client in clients:
            client.close()


@VERSIONS
def test_subscribing_again_replaces_the_subscription(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, name, version=version) as client:
        client.subscribe(name, 0)
        client.subscribe(name, 1)
        client.publish(name, b"x", 2)
        assert client.receive().qos == 1
        expect_nothing_before(client, client, name)


@pytest.mark.parametrize("version", [V31, V311], ids=["v31", "v311"])
def test_versions_talk_to_each_other(
    mqtt_port: int, name: str, version: MQTTProtocolVersion
) -> None:
    with Mqtt(mqtt_port, f"{name}3", version=version) as old, Mqtt(mqtt_port, f"{name}5") as new:
        old.subscribe(f"{name}/new", 2)
        new.subscribe(f"{name}/old", 2)
        new.publish(
            f"{name}/new", b"from 5", 2, UserProperty=[("a", "b")], ContentType="text/plain"
        )
        old.publish(f"{name}/old", b"from the old one", 2)
        assert old.receive().payload == b"from 5"
        assert new.receive().payload == b"from the old one"
