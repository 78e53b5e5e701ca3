"""Directories that earlier versions left are read exactly."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.core.storage.fixtures.make import HERE, contents, keys_of
from tests.support.directory_writer import DirectoryWriter
from tests.support.simulated import Host, SimulatedDisk
from trivium.cli.data_directory import check_record
from trivium.storage.files.filesystem import RealFileSystem
from trivium.storage.repair.inspection import Inspection

FIXTURES = sorted(path.parent for path in HERE.glob("*/expected.json"))


@pytest.fixture(params=FIXTURES, ids=lambda path: str(path.name))
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "fixture"))


def test_there_is_one_for_each_version() -> None:
    assert [path.name for path in FIXTURES] == [
        version + kind
        for version in ("v1", "v2")
        for kind in ("", "-both", "-compressed", "-encrypted")
    ]


def test_what_they_hold_is_kept_as_their_names_say() -> None:
    for path in FIXTURES:
        data = b"".join(each.read_bytes() for each in path.glob("data/*/*"))
        is_clear = b"priority 2" in data
        assert is_clear == (not path.name.endswith(("-encrypted", "-both")))
        catalog = (path / "data" / "catalog.sqlite").read_bytes()
        assert (b"sealed_value" in catalog) == (keys_of(path) is not None)
        zstd_frame = b"\x28\xb5\x2f\xfd"
        assert (zstd_frame in data) == path.name.endswith("-compressed")


def test_it_is_in_order(fixture: Path) -> None:
    inspection = Inspection(RealFileSystem(), str(fixture / "data"), check_record, keys_of(fixture))
    assert (inspection.damages, inspection.losses, inspection.notes) == ([], [], [])


def test_a_crash_while_one_is_taken_over_loses_nothing() -> None:
    """After each operation of the start, by a kill and by a power cut."""
    whole = SimulatedDisk()
    for path in (HERE / "v1" / "data").rglob("*"):
        if path.is_file():
            file = whole.create(f"data/{path.relative_to(HERE / 'v1' / 'data')}")
            file.write([path.read_bytes()], 0, False)
            file.sync()
    for directory in ("data", "data/journal", "data/segments"):
        whole.make_directory(directory)
        whole.sync_directory(directory)
    disk = whole.copy()
    host = Host(whole.copy(), seed=1)
    expected = {name: host.contents(name) for name in host.storage.log_names()}
    random_ = random.Random(0)
    for operation in host.disk.operations:
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            again = Host(crashed, seed=2)
            assert {name: again.contents(name) for name in again.storage.log_names()} == expected
        disk.apply(operation)
    assert len(expected) > 5


@pytest.mark.parametrize("more_lives", [0, 2])
def test_it_is_read_exactly(fixture: Path, more_lives: int) -> None:
    """At once, and once this version has moved all of it by checkpoints of its own."""
    expected = json.loads((fixture / "expected.json").read_text())
    writer = DirectoryWriter(fixture / "data", keys=keys_of(fixture))
    assert not writer.storage.was_clean
    # Older brokers refuse it from now on.
    assert (fixture / "data" / "format").read_text() == "trivium storage 2\n"
    for _ in range(more_lives):
        writer.checkpoint()
        writer.storage.close()
        writer = DirectoryWriter(fixture / "data", keys=keys_of(fixture))
    found = contents(writer.storage, writer.settle_down)
    # A start after a crash notes of itself what is in doubt.
    found["tables"].pop("doubts//")
    assert found == expected
    writer.storage.close()


def test_a_broker_works_with_it(fixture: Path) -> None:
    writer = DirectoryWriter(fixture / "data", keys=keys_of(fixture))
    assert writer.drain("plain") == [
        *(b"plain %d" % number for number in (1, 3, 5, 7, *range(8, 20))),
        b"bound",
    ]
    assert writer.drain("priority") == [b"priority %d" % number for number in range(3)]
    assert "logs" in writer.vhost.exchanges
    kept = writer.vhost.retained.get(b"a.b")
    assert kept is not None
    assert kept.payload == b"kept"
    stream = writer.vhost.streams["events"]
    assert sum(partition.next_offset for partition in stream.partitions) == 23
    writer.storage.close()
