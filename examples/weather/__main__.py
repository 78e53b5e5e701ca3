"""Run the whole example: see the README beside this file."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from examples.weather.alerts import ALERTS, MEANS, Mean, declare_queues, read_queue
from examples.weather.broker import running_broker
from examples.weather.means import run_job, spark_session
from examples.weather.readings import Reading, readings
from examples.weather.replay import replay
from trivium_native.sync import connect


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.weather",
        description="Temperatures by MQTT into a stream, daily means by Spark, alerts by AMQP.",
    )
    parser.add_argument("--days", type=int, default=30, help="how much to replay (default: 30)")
    parser.add_argument("--all", action="store_true", help="replay the whole year")
    parser.add_argument(
        "--above", type=float, default=50.0, help="mean in degrees Fahrenheit that is an alert"
    )
    options = parser.parse_args()
    measured = readings(None if options.all else options.days)
    with tempfile.TemporaryDirectory(prefix="trivium-weather-") as directory:
        means, alerts = run(Path(directory), measured, options.above)
    print(table(means, alerts, len(measured), options.above))


def run(
    directory: Path, measured: list[Reading], threshold: float
) -> tuple[list[Mean], list[Mean]]:
    """The daily means and the alerts that come back for these readings."""
    with running_broker(directory / "broker") as ports, spark_session() as spark:
        url = f"trivium://127.0.0.1:{ports['native']}"
        with connect(url) as native:
            native.declare_stream("weather", partitions=2)
            native.bind_stream("weather", "amq.topic", "weather.*.temperature")
        declare_queues(ports["amqp"])
        # In two parts: the second run of the job goes on where its checkpoint says.
        half = len(measured) // 2
        for part in (measured[:half], measured[half:]):
            replay(ports["mqtt"], part)
            run_job(spark, url, directory / "checkpoint", threshold)
        return read_queue(ports["amqp"], MEANS), read_queue(ports["amqp"], ALERTS)


def table(means: list[Mean], alerts: list[Mean], count: int, threshold: float) -> str:
    """What came back, as text: a line per city and day."""
    alerting = {(alert.city, alert.day) for alert in alerts}
    lines = [
        f"{count} readings, {len(means)} daily means, {len(alerts)} of them above {threshold:g} F",
        "",
        f"{'city':<8} {'day':<10} {'readings':>8} {'mean F':>9}  alert",
    ]
    for mean in means:
        mark = "*" if (mean.city, mean.day) in alerting else ""
        line = f"{mean.city:<8} {mean.day:<10} {mean.readings:>8} {mean.mean:>9.4f}  {mark}"
        lines.append(line.rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()
