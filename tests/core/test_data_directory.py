"""`trivium check` and `trivium repair` on directories of real brokers."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.support.commands import NO_PROTOCOLS, run, serve
from tests.support.directory_writer import DirectoryWriter
from trivium.cli import EXIT_DAMAGED, EXIT_FAILED, EXIT_LOCKED, EXIT_OK, EXIT_USAGE, main
from trivium.cli.data_directory import check_record, describe
from trivium.messages.message import Address, Message
from trivium.streams.records import encode_batch
from trivium.vhost.queue_logs import queue_log_name


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue with 6 of 10 messages in a segment and 5 in the journal, a stream with as many."""
    directory = tmp_path_factory.mktemp("stopped") / "data"
    writer = DirectoryWriter(directory)
    writer.vhost.declare_queue("orders", durable=True)
    writer.vhost.declare_stream("events", 1)
    for number in range(10):
        writer.publish("orders", b"order %d" % number)
        writer.publish("events", b"event %d" % number)
    writer.settle_down()
    queue = writer.vhost.queues["orders"]
    for _ in range(4):
        entry = queue.get()
        assert entry is not None
        queue.settle(entry)
    writer.checkpoint()
    for number in range(10, 15):
        writer.publish("orders", b"order %d" % number)
        writer.publish("events", b"event %d" % number)
        writer.settle_down()
    writer.storage.close()
    return directory


@pytest.fixture
def directory(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def flip(directory: Path, text: bytes, pattern: str, bit: int = 1) -> Path:
    """Change a bit of ``text``, wherever a file that matches holds it."""
    for path in sorted(directory.glob(pattern)):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        if at >= 0:
            data[at] ^= bit
            path.write_bytes(data)
            return path
    raise AssertionError(f"{text!r} is in no file")


def check(directory: Path) -> tuple[int, list[str]]:
    result = run("check", str(directory))
    assert result.stderr == ""
    return result.returncode, result.stdout.splitlines()


def repair(directory: Path) -> list[str]:
    result = run("repair", str(directory))
    assert (result.returncode, result.stderr) == (EXIT_OK, "")
    return result.stdout.splitlines()


def test_check_lists_what_a_directory_holds(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert check(directory) == (
        EXIT_OK,
        [
            "queue 'orders' in vhost '/': 11 messages, offsets 4 to 14",
            "stream '//events' partition 0: 6 batches, offsets 0 to 14",
            f"{directory} is in order",
        ],
    )
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert after == before


def test_check_of_a_directory_in_use_is_refused(directory: Path) -> None:
    writer = DirectoryWriter(directory)
    for command in ("check", "repair"):
        result = run(command, str(directory))
        assert result.returncode == EXIT_LOCKED
        assert result.stderr == f"trivium: {directory} is in use by another process\n"
    writer.storage.close()


def test_what_is_no_data_directory_is_refused_and_not_made(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        result = run("check", str(place))
        assert result.returncode == EXIT_FAILED
        assert result.stderr == f"trivium: {place} is no data directory\n"
    assert list(tmp_path.iterdir()) == []
    assert run("check").returncode == EXIT_USAGE


def test_another_version_is_refused(directory: Path) -> None:
    (directory / "format").write_text("trivium storage 9\n")
    for command in ("check", "repair"):
        result = run(command, str(directory))
        assert result.returncode == EXIT_DAMAGED
        assert "storage format 9" in result.stderr


def test_serve_names_repair_and_serves_after_it(directory: Path) -> None:
    flip(directory, b"order 11", "journal/*.journal")
    refused = run("serve", "--data", str(directory), "--mqtt", "0", "--http", "off")
    assert refused.returncode == EXIT_DAMAGED
    assert f"run: trivium repair {directory}" in refused.stderr
    assert check(directory)[0] == EXIT_FAILED
    lines = repair(directory)
    assert "lost: queue 'orders' in vhost '/': offset 11 (1 records)" in lines
    assert "lost: stream '//events' partition 0: offset 11 (1 batches)" in lines
    with serve("--data", str(directory)) as (_, line):
        assert "trivium ready" in line
    assert check(directory)[0] == EXIT_OK


def test_repair_keeps_the_rest_and_what_was_damaged(directory: Path) -> None:
    path = flip(directory, b"order 5", "segments/*.segment")
    damaged = path.read_bytes()
    code, lines = check(directory)
    assert code == EXIT_FAILED
    (damage,) = [line for line in lines if line.startswith("damaged:")]
    assert damage.startswith(f"damaged: {path} is damaged at byte ")
    assert damage.endswith(": the content of a block is wrong")
    assert "lost: queue 'orders' in vhost '/': offsets 4 to 9 (6 records)" in lines
    assert lines[-1] == f"damaged (1); to save what can be saved, run: trivium repair {directory}"
    reported = repair(directory)
    (quarantine,) = directory.glob("quarantine-*")
    assert (quarantine / "segments" / path.name).read_bytes() == damaged
    assert (quarantine / "report.txt").read_text().splitlines() == reported[:-1]
    assert reported[-1].startswith(f"repaired; what was damaged is in {quarantine}")
    assert check(directory)[0] == EXIT_OK
    assert repair(directory) == [f"{directory} is in order, nothing to repair"]
    writer = DirectoryWriter(directory)
    assert writer.drain("orders") == [b"order %d" % n for n in range(10, 15)]
    assert writer.vhost.streams["events"].partitions[0].next_offset == 15
    writer.storage.close()


def test_a_queue_whose_declaration_is_lost_keeps_its_messages(tmp_path: Path) -> None:
    """It is declared anew by whoever uses it."""
    directory = tmp_path / "data"
    writer = DirectoryWriter(directory, journal_file_size=2048)
    writer.vhost.declare_queue("orders", durable=True)
    for number in range(30):
        writer.publish("orders", b"order %d" % number)
        if number % 10 == 9:
            writer.checkpoint()
    writer.storage.close()
    for path in directory.glob("catalog*.sqlite"):
        path.write_bytes(b"not SQLite" * 500)
    lines = repair(directory)
    kept = "kept, even if removed before: queue 'orders' in vhost '/'"
    assert f"{kept}: offsets 0 to 29 (30 records)" in lines
    code, listed = check(directory)
    assert code == EXIT_OK
    assert listed[0].startswith("queue 'orders' in vhost '/': 30 messages, offsets 0 to 29, next")
    writer = DirectoryWriter(directory)
    assert "orders" not in writer.vhost.queues
    writer.vhost.declare_queue("orders", durable=True)
    assert writer.drain("orders") == [b"order %d" % number for number in range(30)]
    writer.storage.close()


@pytest.mark.parametrize("part", ["journal", "segments"])
def test_a_directory_of_which_a_part_is_missing_is_repaired(directory: Path, part: str) -> None:
    shutil.rmtree(directory / part)
    refused = run("serve", "--data", str(directory), "--mqtt", "0", "--http", "off")
    assert refused.returncode == EXIT_DAMAGED
    shutil.rmtree(directory / part)
    assert check(directory)[0] == EXIT_FAILED
    lines = repair(directory)
    expected = {
        "journal": "lost, if there was anything: queue 'orders' in vhost '/': offsets from 10 on",
        "segments": "lost: queue 'orders' in vhost '/': offsets 4 to 9 (6 records)",
    }
    assert expected[part] in lines
    assert check(directory)[0] == EXIT_OK
    writer = DirectoryWriter(directory)
    kept = range(4, 10) if part == "journal" else range(10, 15)
    assert writer.drain("orders") == [b"order %d" % n for n in kept]
    writer.storage.close()


@pytest.mark.parametrize("pattern", ["journal/*.journal", "segments/*.segment"])
def test_a_directory_in_the_place_of_a_file_is_moved_away(directory: Path, pattern: str) -> None:
    path = max(directory.glob(pattern))
    path.unlink()
    path.mkdir()
    code, lines = check(directory)
    assert code == EXIT_FAILED
    assert f"damaged: {path} is damaged at byte 0: it is a directory" in lines
    repair(directory)
    assert not path.exists() or path.is_file()
    with serve("--data", str(directory)) as (_, line):
        assert "trivium ready" in line


def test_what_the_disk_cannot_read_is_damaged_and_the_rest_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reads that touch the header of a segment file fail, as a bad block makes them."""
    path = next(directory.glob("segments/*.segment"))
    inode = path.stat().st_ino
    pread = os.pread

    def worn(descriptor: int, size: int, position: int) -> bytes:
        if os.fstat(descriptor).st_ino == inode and position == 0:
            raise OSError(errno.EIO, "input/output error")
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", worn)
    assert main(["check", str(directory)]) == EXIT_FAILED
    assert f"{path} is damaged at byte 0: the file header is wrong" in capsys.readouterr().out
    assert main(["repair", str(directory)]) == EXIT_OK
    monkeypatch.undo()
    assert check(directory)[0] == EXIT_OK
    writer = DirectoryWriter(directory)
    assert writer.drain("orders") == [b"order %d" % n for n in range(4, 15)]
    writer.storage.close()


@pytest.mark.parametrize("names", [("catalog",), ("catalog-copy",), ("catalog", "catalog-copy")])
def test_a_catalog_whose_schema_is_no_text_is_damaged(
    directory: Path, names: tuple[str, ...]
) -> None:
    files = [f"{name}.sqlite" for name in names]
    for name in files:
        flip(directory, b"log (number", name, 0x80)
    code, lines = check(directory)
    assert code == EXIT_FAILED
    assert [name for name in files if any(name in line for line in lines)] == files
    repair(directory)
    assert check(directory)[0] == EXIT_OK
    with serve("--data", str(directory)):
        pass


def test_a_directory_that_may_not_be_searched_is_one_line(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert main(["check", str(directory)]) == EXIT_FAILED
    assert capsys.readouterr().err.count("\n") == 1


def test_an_encrypted_directory_needs_its_key(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("ab" * 32 + "\n")
    other.write_text("cd" * 32 + "\n")
    data = tmp_path / "data"
    options = ("serve", "--data", str(data), *NO_PROTOCOLS)
    with serve("--data", str(data), TRIVIUM_STORAGE__KEY_FILE=str(key)):
        pass
    for refused in (
        run(*options, TRIVIUM_STORAGE__KEY_FILE=str(other)),
        run(*options, TRIVIUM_STORAGE__KEY_FILE="nowhere"),
        run(*options, TRIVIUM_STORAGE__KEY_ENV="PATH"),
    ):
        assert refused.returncode == EXIT_USAGE
        assert refused.stderr.count("\n") == 1
    refused = run(*options)
    assert refused.returncode == EXIT_USAGE
    assert "is encrypted with the key" in refused.stderr
    assert run("check", str(data)).returncode == EXIT_USAGE
    assert run("check", str(data), "--key-file", str(other)).returncode == EXIT_USAGE
    assert run("check", str(data), "--key-file", str(key)).returncode == EXIT_OK
    assert run("check", str(data), "--key-env", "K", K="ab" * 32).returncode == EXIT_OK
    assert run("check", str(data), TRIVIUM_STORAGE__KEY_FILE=str(key)).returncode == EXIT_OK
    assert run("check", str(data), TRIVIUM_STORAGE__KEY_ENV="K", K="ab" * 32).returncode == EXIT_OK
    assert run("check", str(data), TRIVIUM_STORAGE__key_env="K", K="ab" * 32).returncode == EXIT_OK


def test_logs_are_shown_as_their_users_know_them() -> None:
    assert describe(queue_log_name("a/b", "q/1", 3)) == "queue 'q/1' in vhost 'a/b', priority 3"
    assert describe(queue_log_name("/", "q")) == "queue 'q' in vhost '/'"
    assert describe("stream///s/0123abcd/2") == "stream '//s' partition 2"
    compacted = describe("stream///s/0123abcd/2/compacted/7")
    assert compacted == "stream '//s' partition 2, compacted"
    assert describe("other") == "log 'other'"


def test_records_without_meaning_are_found() -> None:
    assert check_record(queue_log_name("/", "q"), b"", 1)
    assert check_record("stream///s/0123abcd/2", b"TRVB", 1)
    message = Message(0, Address("", b"s"), b"", b"", 1, True, 0)
    sparse = encode_batch([message], None, 0, [4], 9)
    assert check_record("stream///s/0123abcd/2", sparse, 9) == ""
    assert check_record("stream///s/0123abcd/2", sparse, 1) == "it has 9 offsets, not 1"
