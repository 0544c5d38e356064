"""A link's subscriptions."""

from __future__ import annotations

import itertools

from paho.mqtt.client import topic_matches_sub

from sparsyedge.edge.protocol.subscriptions import Subscriptions

LEVELS = ("", "a", "b", "a+", "$SYS", "#x")


def test_a_topic_is_covered_as_the_mqtt_client_says() -> None:
    topics = ["/".join(levels) for length in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=length)]
    topics = [topic for topic in topics if topic and "+" not in topic and "#" not in topic]
    patterns = ["a", "a/b", "+", "#", "+/b", "a/+", "a/#", "a/+/b", "+/+/+", "+/#", "$SYS/#", "$SYS/+", "a/+/#"]
    for pattern in patterns:
        subscriptions = Subscriptions()
        subscriptions.add(pattern, as_published=False)
        for topic in topics:
            assert subscriptions.cover(topic) == topic_matches_sub(pattern, topic), (pattern, topic)


def test_topics_are_covered_from_subscribing_to_unsubscribing() -> None:
    subscriptions = Subscriptions()
    assert not subscriptions.cover("a/b")
    for pattern in ("a/+", "c.d/#"):
        subscriptions.add(pattern, as_published=False)
    assert subscriptions.cover("a/b")
    assert subscriptions.cover("c.d/e/f")
    assert not subscriptions.cover("cxd/e")
    subscriptions.remove("a/+")
    assert not subscriptions.cover("a/b")
