"""Encryption at rest: what is on the disk, with which key it is read, and how a key is changed."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.storage.model import Scenario, assert_equal
from tests.support.simulated import Host, SimulatedDisk
from trivium.storage.errors import StorageDamaged, StorageKeyError
from trivium.storage.files.encryption import Keys, find_keys, key_id, read_keys
from trivium.storage.repair.inspection import MAYBE_LOST, Inspection
from trivium.storage.repair.repair import repair

OLD = bytes(range(32))
NEW = bytes(range(1, 33))
SECRETS = (b"secret record", b"secret note", b"secret value")
CATALOG = "data/catalog.sqlite"


def host_of(
    keys: Keys, disk: SimulatedDisk | None = None, seed: int = 0, compression: str = "none"
) -> Host:
    return Host(
        disk,
        seed=seed,
        journal_file_size=2000,
        memory_size=0,
        keys=keys,
        compression=compression,
    )


def fill(host: Host) -> None:
    """Secrets in segment, catalog and journal."""
    for _ in range(2):
        for number in range(20):
            host.storage.log("l").append(b"%d secret record" % number, 1, b"secret note")
        host.storage.table("t").put(b"k%d" % len(host.storage.table("t")), b"secret value")
        host.commit()
        if len(host.storage.table("t")) == 1:
            host.checkpoint()


def filled(keys: Keys, compression: str = "none") -> Host:
    host = host_of(keys, compression=compression)
    fill(host)
    return host


def contents(host: Host) -> tuple[dict[int, tuple[bytes, bytes]], dict[bytes, bytes]]:
    return host.contents("l"), dict(host.storage.table("t").items())


def files(disk: SimulatedDisk, suffix: str = "") -> list[str]:
    return sorted(path for path in disk.files if path.endswith(suffix))


def secrets_on(disk: SimulatedDisk) -> set[bytes]:
    return {secret for secret in SECRETS for path in disk.files if secret in disk.content(path)}


def key_ids(disk: SimulatedDisk) -> set[bytes]:
    """Of the keys that are needed to read the disk; empty bytes where none is."""
    found: set[bytes] = set()
    for path in files(disk, ".journal"):
        data = bytes(disk.content(path))
        found.add(data[40:48].rstrip(b"\0"))
    for path in files(disk, ".segment"):
        data = bytes(disk.content(path))
        found.add(b"" if data[8] == 1 else data[24:32])
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(disk.content(CATALOG)))
    if connection.execute("SELECT count(*) FROM key_value").fetchone() != (0,):
        found.add(b"")
    query = "SELECT name FROM sqlite_master WHERE name = 'sealed_value'"
    if connection.execute(query).fetchone():
        found |= {row[0] for row in connection.execute("SELECT key_id FROM sealed_value")}
    connection.close()
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_nothing_of_a_message_or_value_is_on_the_disk_in_clear(compression: str) -> None:
    assert secrets_on(filled(Keys(), "none").disk) == set(SECRETS)
    host = filled(Keys(OLD), compression)
    assert secrets_on(host.disk) == set()
    assert secrets_on_operations(host.disk) == set()
    expected = contents(filled(Keys()))
    assert contents(host) == expected
    assert contents(host_of(Keys(OLD), host.disk.copy(), 1)) == expected


def secrets_on_operations(disk: SimulatedDisk) -> set[bytes]:
    return {secret for secret in SECRETS for each in disk.operations if secret in each.data}


@pytest.mark.parametrize("keys", [Keys(), Keys(NEW), Keys(None, (NEW,))])
def test_without_the_key_nothing_opens_and_nothing_changes(keys: Keys) -> None:
    disk = filled(Keys(OLD)).disk.copy()
    before = {path: bytes(disk.content(path)) for path in disk.files}
    for _ in range(2):
        with pytest.raises(StorageKeyError, match=f"the key {key_id(OLD).hex()}, which is not"):
            host_of(keys, disk, 1)
    with pytest.raises(StorageKeyError):
        Inspection(disk, "data", lambda *_: "", keys)
    assert {path: bytes(disk.content(path)) for path in disk.files} == before


@pytest.mark.parametrize(
    ("written", "then", "ids"),
    [
        (Keys(OLD), Keys(NEW, (OLD,)), {key_id(NEW)}),
        (Keys(), Keys(NEW), {key_id(NEW)}),
        (Keys(OLD), Keys(None, (OLD,)), {b""}),
    ],
)
def test_checkpoints_rewrite_everything_with_another_key(
    written: Keys, then: Keys, ids: set[bytes]
) -> None:
    host = filled(written)
    expected = contents(host)
    host = host_of(then, host.disk.copy(), 1)
    assert contents(host) == expected
    # It asks for the turns itself.
    host.commit()
    host.checkpoint()
    assert key_ids(host.disk) == ids
    assert contents(host) == expected
    last = Keys(NEW) if ids == {key_id(NEW)} else Keys()
    again = host_of(last, host.disk.copy(), 2)
    assert contents(again) == expected
    assert Inspection(host.disk.copy(), "data", lambda *_: "", last).damages == []


def test_a_start_with_another_key_rewrites_a_journal_without_being_used() -> None:
    host = host_of(Keys(OLD))
    host.storage.log("l").append(b"secret record")
    host.storage.table("t").put(b"k", b"secret value")
    host.commit()
    host = host_of(Keys(NEW, (OLD,)), host.disk.copy(), 1)
    # It asks for the turns itself.
    host.commit()
    assert key_ids(host.disk) == {key_id(NEW)}
    again = host_of(Keys(NEW), host.disk.copy(), 2)
    assert again.contents("l") == {0: (b"secret record", b"")}
    host.commit()
    done = len(host.disk.operations)
    host.commit()
    assert len(host.disk.operations) == done


def test_none_can_only_be_the_first_key() -> None:
    with pytest.raises(ValueError, match="none can only be the first key"):
        read_keys("ab" * 32 + " none")


def test_a_crash_at_any_operation_while_a_key_is_changed() -> None:
    host = filled(Keys(OLD))
    expected = contents(host)
    disk = host.disk.copy()
    start = host.disk.copy()
    both = Keys(NEW, (OLD,))
    host = host_of(both, start, 1)
    host.commit()
    random_ = random.Random(0)
    for operation in host.disk.operations:
        disk.apply(operation)
        for crashed in (disk.copy(), disk.power_cut(None), disk.power_cut(random_)):
            assert contents(host_of(both, crashed, 2)) == expected


def test_clear_values_do_not_stay_in_the_catalog() -> None:
    host = filled(Keys())
    assert b"secret value" in host.disk.content(CATALOG)
    host = host_of(Keys(OLD), host.disk.copy(), 1)
    host.commit()
    assert b"secret value" not in host.disk.content(CATALOG)


def derived(key: bytes, salt: bytes, context: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt, context).derive(key))


def test_a_journal_is_encrypted_as_the_document_says() -> None:
    host = filled(Keys(OLD))
    data = bytes(host.disk.content(files(host.disk, ".journal")[-1]))
    assert data[8:12] == bytes([3, 0, 0, 0])
    assert data[40:48] == key_id(OLD)
    assert data[92:96] == zlib.crc32(data[:92]).to_bytes(4, "little")
    cipher = derived(OLD, data[48:80], data[:40])
    head = data[96:144]
    body = data[144 : 144 + int.from_bytes(head[24:32], "little")]
    assert head[:8] == data[32:40]
    assert int.from_bytes(head[36:40], "little") == zlib.crc32(body)
    nonce = head[8:16] + bytes(4)
    assert b"secret record" in cipher.decrypt(nonce, body, head[:36] + bytes(8))


def test_a_segment_is_encrypted_as_the_document_says() -> None:
    host = filled(Keys(OLD))
    (path,) = files(host.disk, ".segment")
    data = bytes(host.disk.content(path))
    assert data[8:12] == bytes([2, 0, 0, 0])
    assert data[24:32] == key_id(OLD)
    assert data[64:68] == bytes(4)
    assert data[68:72] == zlib.crc32(data[:68]).to_bytes(4, "little")
    cipher = derived(OLD, data[32:64], data[:24])
    head = data[72:120]
    assert head[28] & 8
    body = data[120 : 120 + int.from_bytes(head[32:40], "little")]
    nonce = (72).to_bytes(12, "little")
    assert b"secret note" in cipher.decrypt(nonce, body, head[:40] + bytes(4))


def test_a_value_is_encrypted_as_the_document_says() -> None:
    host = filled(Keys(OLD))
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(host.disk.content(CATALOG)))
    ((table, key, id_, salt, number, value, _),) = connection.execute(
        "SELECT * FROM sealed_value"
    ).fetchall()
    connection.close()
    assert (key, id_) == (b"k0", key_id(OLD))
    cipher = derived(OLD, salt, b"trivium catalog")
    context = table.to_bytes(4, "little") + key
    assert cipher.decrypt(number.to_bytes(12, "little"), value, context) == b"secret value"


def test_key_ids() -> None:
    assert key_id(OLD).hex() == "eb8fb1770185ce5c"


def test_no_salt_comes_twice() -> None:
    salts: list[bytes] = []
    disk = None
    for life in range(4):
        host = host_of(Keys(OLD), disk, life)
        fill(host)
        host.checkpoint()
        for operation in host.disk.operations:
            if operation.data.startswith(b"TRIVJRNL"):
                salts.append(operation.data[48:80])
            elif operation.data.startswith(b"TRIVSEGM"):
                salts.append(operation.data[32:64])
        disk = host.disk.copy()
    assert len(salts) > 12
    assert len(set(salts)) == len(salts)


def with_right_checksums(disk: SimulatedDisk, path: str, at: int) -> None:
    """Change a byte of a body at ``at`` and repair all checksums, as an attacker would."""
    content = disk.content(path)
    content[at] ^= 1
    start = 96 if path.endswith(".journal") else 72
    length_at, checksum_at = (24, 36) if path.endswith(".journal") else (32, 40)
    length = int.from_bytes(content[start + length_at : start + length_at + 8], "little")
    body = content[start + 48 : start + 48 + length]
    content[start + checksum_at : start + checksum_at + 4] = zlib.crc32(body).to_bytes(4, "little")
    head = content[start : start + 44]
    content[start + 44 : start + 48] = zlib.crc32(head).to_bytes(4, "little")


def test_a_changed_batch_is_noticed_in_spite_of_its_checksums() -> None:
    host = filled(Keys(OLD))
    path = files(host.disk, ".journal")[-1]
    for at in (144, 96 + 32):
        disk = host.disk.copy()
        with_right_checksums(disk, path, at)
        with pytest.raises(StorageDamaged, match="cannot be decrypted"):
            host_of(Keys(OLD), disk, 1)
        losses = Inspection(disk, "data", lambda *_: "", Keys(OLD)).losses
        assert [(loss.log, loss.last, loss.fate) for loss in losses] == [("l", -1, MAYBE_LOST)]


def test_a_changed_block_is_noticed_in_spite_of_its_checksums() -> None:
    host = filled(Keys(OLD))
    (path,) = files(host.disk, ".segment")
    disk = host.disk.copy()
    with_right_checksums(disk, path, 130)
    again = host_of(Keys(OLD), disk, 1)
    again.storage.log("l").load(0, 1, lambda: None)
    again.step()
    (error,) = again.errors
    assert isinstance(error, StorageDamaged)


def test_a_file_header_is_tied_to_its_batches() -> None:
    """Another marker there and in a batch, with right checksums."""
    host = filled(Keys(OLD))
    path = files(host.disk, ".journal")[-1]
    disk = host.disk.copy()
    content = disk.content(path)
    content[32] ^= 1
    content[96:104] = content[32:40]
    content[140:144] = zlib.crc32(content[96:140]).to_bytes(4, "little")
    content[92:96] = zlib.crc32(content[:92]).to_bytes(4, "little")
    with pytest.raises(StorageDamaged, match="cannot be decrypted"):
        host_of(Keys(OLD), disk, 1)


def test_an_encrypted_directory_is_repaired_and_stays_encrypted() -> None:
    host = filled(Keys(OLD))
    for _ in range(3):
        host.storage.log("l").append(b"secret record")
        host.commit()
    disk = host.disk.copy()
    path = files(disk, ".journal")[-1]
    disk.content(path)[150] ^= 1
    inspection = Inspection(disk, "data", lambda *_: "", Keys(OLD))
    assert [damage.file for damage in inspection.damages] == [path]
    repair(inspection, "data/quarantine-1", ["report"], random.Random(5).randbytes)
    assert secrets_on(disk) == set()
    assert b"" not in key_ids(disk)
    found = contents(host_of(Keys(OLD), disk, 3))
    expected = contents(host)
    assert found[0].items() < expected[0].items()
    missing = expected[0].keys() - found[0].keys()
    assert all(any(each.first <= at <= each.last for each in inspection.losses) for at in missing)


@settings(max_examples=6)
@given(st.integers(0, 1 << 32))
def test_crashes_lose_nothing_acknowledged(seed: int) -> None:
    def opened(disk: SimulatedDisk | None, seed: int) -> Host:
        return Host(
            disk,
            seed=seed,
            journal_file_size=1500,
            checkpoint_size=2500,
            memory_size=600,
            keys=Keys(OLD),
        )

    scenario = Scenario(seed, opened(None, seed))
    scenario.run(40)
    random_ = random.Random(seed)
    for done, disk in scenario.disks():
        for crashed in (disk, disk.power_cut(random_)):
            host = opened(crashed, 1 + len(disk.inodes))
            found = host.storage.durable - 1
            assert found >= scenario.acknowledged_after(done)
            assert_equal(host, scenario.states[found])


def test_keys_are_read() -> None:
    keys = read_keys(f"{NEW.hex()}\n{OLD.hex()}\n")
    assert keys.current == key_id(NEW)
    keys.cipher(key_id(OLD), bytes(32), b"", "here")
    plain = read_keys(f"none {OLD.hex()}")
    assert plain.current == bytes(8)


@pytest.mark.parametrize("text", ["", "none none", "ab" * 31, "zz" * 32, f"{OLD.hex()} none"])
def test_wrong_keys_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="key") as raised:
        read_keys(text)
    assert text == "" or text not in str(raised.value)


def test_keys_are_found(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(OLD.hex() + "\n")
    assert find_keys(str(file), "", {}).current == key_id(OLD)
    assert find_keys("", "KEY", {"KEY": NEW.hex()}).current == key_id(NEW)
    assert find_keys("", "", {}).current == bytes(8)
    wrong: list[tuple[Callable[[], Keys], str]] = [
        (lambda: find_keys("a", "b", {}), "exclude each other"),
        (lambda: find_keys("", "KEY", {}), "key_env: KEY is not set"),
        (lambda: find_keys("", "KEY", {"KEY": "x"}), "key_env: KEY: a key is 64"),
        (lambda: find_keys(str(tmp_path / "none"), "", {}), "key_file: .*: No such file"),
    ]
    for find, text in wrong:
        with pytest.raises(ValueError, match=text):
            find()
    file.write_bytes(b"\xff" * 32)
    with pytest.raises(ValueError, match="64 hexadecimal"):
        find_keys(str(file), "", {})
