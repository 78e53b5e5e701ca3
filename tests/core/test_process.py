"""What the system tells of this process."""

from __future__ import annotations

import psutil
import pytest

import trivium.observability.process
from trivium.observability.process import release_free_memory, resident_bytes, total_memory_bytes

MACHINE = psutil.virtual_memory().total


def files(monkeypatch: pytest.MonkeyPatch, contents: dict[str, str]) -> None:
    """The kernel's files are these, and no others."""

    def read(path: str) -> str:
        if path not in contents:
            raise FileNotFoundError(path)
        return contents[path]

    monkeypatch.setattr(trivium.observability.process, "_read", read)


def test_resident_memory_is_this_process() -> None:
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_resident_memory_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    files(monkeypatch, {})
    assert resident_bytes() == -1


def test_total_memory_is_the_machines_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    files(monkeypatch, {})
    assert total_memory_bytes() == MACHINE
    files(
        monkeypatch,
        {
            "/proc/self/cgroup": "0::/a\n",
            "/sys/fs/cgroup/a/memory.max": "max\n",
            "/sys/fs/cgroup//memory.max": f"{MACHINE * 2}\n",
        },
    )
    assert total_memory_bytes() == MACHINE


@pytest.mark.parametrize("limited", ["/system.slice/trivium.service", "/system.slice", "/"])
def test_the_least_limit_of_all_parent_groups_counts(
    limited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(
        monkeypatch,
        {
            "/proc/self/cgroup": "0::/system.slice/trivium.service\n",
            f"/sys/fs/cgroup{limited}/memory.max": "1048576\n",
        },
    )
    assert total_memory_bytes() == 1_048_576


def test_groups_of_version_1_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files(
        monkeypatch,
        {
            "/proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/c\n0::/\n",
            "/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes": "2097152\n",
        },
    )
    assert total_memory_bytes() == 2_097_152


def test_a_group_whose_path_is_the_one_outside_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files(
        monkeypatch,
        {
            "/proc/self/cgroup": "0::/docker/outside\n",
            "/sys/fs/cgroup//memory.max": "4194304\n",
        },
    )
    assert total_memory_bytes() == 4_194_304


def test_giving_memory_back_never_fails() -> None:
    release_free_memory()
