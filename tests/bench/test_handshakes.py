"""Handshakes with a server that is ours, and what is said of them."""

import pytest

from bench.handshakes import HandshakeResult, compared, measure_handshakes


def test_clients_are_let_in_and_counted() -> None:
    (result,) = measure_handshakes(["trivium-interpreted"], 6, 4, 2)
    assert len(result.seconds) == len(result.server_cpu) == 2
    assert result.rate == pytest.approx(6 / (sum(result.seconds) / 2))


def test_the_goal_is_for_the_compiled_build_beside_its_peer() -> None:
    results = [
        HandshakeResult(name, 100, 10, [seconds], [0.01], [0.02])
        for name, seconds in (("mosquitto", 1.0), ("trivium", 0.5), ("trivium-interpreted", 2.0))
    ]
    first, second, third = compared(results).split("\n")
    assert "x mosquitto" not in first
    assert "2.00 x mosquitto (goal 1 met)" in second
    assert third.endswith("0.50 x mosquitto")
    assert "MISSED" in compared([results[0], HandshakeResult("trivium", 100, 10, [2.0], [1], [1])])
