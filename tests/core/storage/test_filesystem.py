"""The real file system: partial writes, systems that cannot write and sync in one, names."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from trivium.storage.errors import StorageLocked
from trivium.storage.files.filesystem import RealFileSystem

SYSTEM = RealFileSystem()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = SYSTEM.create(path)
    file.write([b"abc", b"", b"defg"], 2, True)
    file.write([b"XY"], 3, False)
    file.sync()
    assert file.size() == 9
    assert file.read(0, 100) == b"\0\0aXYdefg"
    assert file.read(4, 2) == b"Yd"
    assert file.read(9, 5) == b""
    file.allocate(100)
    assert file.size() == 100
    file.truncate(3)
    file.close()
    assert Path(path).read_bytes() == b"\0\0a"
    SYSTEM.create(path).close()
    assert Path(path).read_bytes() == b""


def test_any_number_of_parts_is_written(tmp_path: Path) -> None:
    file = RealFileSystem().create(str(tmp_path / "file"))
    parts = [b"%d " % number for number in range(5000)]
    file.write(parts, 3, True)
    assert file.read(3, 1 << 20) == b"".join(parts)
    file.close()


def test_a_write_that_the_system_does_in_pieces_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def short(descriptor: int, parts: Sequence[bytes], position: int, flags: int = 0) -> int:
        return real(descriptor, [b"".join(parts)[:3]], position, flags)

    file = SYSTEM.create(str(tmp_path / "file"))
    monkeypatch.setattr(os, "pwritev", short)
    file.write([b"0123", b"45678", b"9"], 0, True)
    assert file.read(0, 100) == b"0123456789"


def test_a_system_that_cannot_write_and_sync_in_one_does_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    synced: list[int] = []

    def plain(descriptor: int, parts: Sequence[bytes], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(descriptor, parts, position)

    file = SYSTEM.create(str(tmp_path / "file"))
    monkeypatch.setattr(os, "pwritev", plain)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file.write([b"a"], 0, False)
    assert synced == []
    file.write([b"b"], 1, True)
    assert len(synced) == 1
    assert file.read(0, 10) == b"ab"


def test_names(tmp_path: Path) -> None:
    directory = str(tmp_path / "a" / "b")
    SYSTEM.make_directory(directory)
    SYSTEM.make_directory(directory)
    for name in ("2", "1"):
        SYSTEM.create(f"{directory}/{name}").close()
    assert SYSTEM.names(directory) == ["1", "2"]
    SYSTEM.rename(f"{directory}/1", f"{directory}/2")
    SYSTEM.sync_directory(directory)
    assert SYSTEM.names(directory) == ["2"]
    SYSTEM.remove(f"{directory}/2")
    SYSTEM.remove(f"{directory}/2")
    assert not SYSTEM.exists(f"{directory}/2")
    with pytest.raises(FileNotFoundError):
        SYSTEM.open(f"{directory}/2")


def test_what_is_free_is_told_or_nothing(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 < SYSTEM.free(str(tmp_path)) <= found.f_blocks * found.f_frsize
    assert SYSTEM.free(str(tmp_path / "nowhere")) == 0


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    lock = SYSTEM.lock(str(tmp_path / "lock"))
    with pytest.raises(StorageLocked):
        SYSTEM.lock(str(tmp_path / "lock"))
    lock.release()
    SYSTEM.lock(str(tmp_path / "lock")).release()


def test_a_database_keeps_what_was_committed(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog")
    database = SYSTEM.open_database(path)
    database.connection.execute("BEGIN")
    database.connection.execute("CREATE TABLE t (x)")
    database.commit()
    database.connection.execute("BEGIN")
    database.connection.execute("INSERT INTO t VALUES (1)")
    database.close()
    database = SYSTEM.open_database(path)
    assert database.connection.execute("SELECT * FROM t").fetchall() == []
    assert database.connection.execute("PRAGMA synchronous").fetchone() == (3,)
    database.close()


def test_a_database_keeps_no_statements(tmp_path: Path) -> None:
    """Each is as long as there are rows: 128 of them, which it would keep, take 20 MB."""
    database = SYSTEM.open_database(str(tmp_path / "database"))
    before = statements()
    database.connection.execute("CREATE TABLE t (number)").close()
    for count in range(1, 50):
        places = ", ".join("?" * count)
        database.connection.execute(f"DELETE FROM t WHERE number IN ({places})", (0,) * count)
    assert statements() == before
    database.close()


def statements() -> int:
    """How many of SQLite's are in memory."""
    gc.collect()
    names = (str(type(each)) for each in gc.get_objects())
    return sum(name == "<class 'sqlite3.Statement'>" for name in names)
