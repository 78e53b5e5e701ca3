"""How long a program or a test waits for a broker of its own: ``python -m bench.embedded``.

Each row is what one step took the first time in a process, and the median of later times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

ROUNDS = 20


def took(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and those of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor)


def show(name: str, times: list[tuple[float, float]]) -> None:
    first, later = times[0], times[1:]
    line = f"{name:40} {first[0]:8.1f} ms ({first[1]:.1f} of the processor)"
    if later:
        line += f", then {statistics.median(each[0] for each in later):.1f} ms"
    print(line)


def load() -> None:
    import trivium.testing  # noqa: F401


def main() -> None:
    show("import", [took(load)])
    from trivium.config import Config, StorageConfig
    from trivium.testing import SharedBroker

    config = Config(listen={}, storage=StorageConfig(mode="memory"))

    def run() -> None:
        SharedBroker(config).stop()

    show("start and stop in memory, no listener", [took(run) for _ in range(ROUNDS)])
    with SharedBroker(config) as broker:
        for protocol in ("mqtt", "amqp", "native"):

            def test(protocol: str = protocol) -> None:
                vhost = broker.make_vhost()
                broker.listen(protocol, vhost)
                broker.delete_vhost(vhost)

            show(f"virtual host and port for {protocol}", [took(test) for _ in range(ROUNDS)])

        def visit() -> None:
            with broker.client() as client:
                client.declare_queue("q")

        show("client in the process, one request", [took(visit) for _ in range(ROUNDS)])


if __name__ == "__main__":
    main()
