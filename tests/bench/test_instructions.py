"""Instructions are counted, recorded in the document, and compared with what is recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import __main__ as commands
from bench import instructions, record, runner
from bench.instructions import ROWS, STORAGE_APPEND, STORAGE_RECOVERY, Instructions
from bench.record import Record, Recorded, compare, read_record, this_platform, write_record
from bench.scenarios import SCENARIOS
from bench.servers import ServerError

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
EMPTY = "before\n<!-- written by ./dev bench --instructions --record -->\n{}" + (
    "<!-- end of what is written -->\nafter\n"
)
ROW, OTHER = list(ROWS)[:2]


@pytest.fixture(autouse=True)
def _results_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(EMPTY.format(""))
    monkeypatch.setattr(record, "DOCUMENT", path)
    return path


def counted(row: str, per_message: float, server: str = "trivium") -> Instructions:
    return Instructions(server, row, 100, per_message)


@needs_valgrind
@pytest.mark.skipif(not shutil.which("mosquitto", path="/usr/sbin:/usr/bin"), reason="no peer")
def test_instructions_of_a_real_process_are_counted(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    found = instructions.count_instructions("mqtt-qos0-1to1", "mosquitto", 2000, profile)
    assert found.messages == 1500
    assert 500 < found.per_message < 50_000
    assert "totals: " in profile.read_text()


@needs_valgrind
@pytest.mark.long
@pytest.mark.parametrize("row", [STORAGE_APPEND, STORAGE_RECOVERY])
def test_instructions_of_the_storage_alone_are_counted(row: str) -> None:
    found = instructions.count_instructions(row, "trivium-interpreted", 2000)
    assert found.messages == 1500
    assert 1000 < found.per_message < 1_000_000


def test_without_valgrind_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ServerError, match="valgrind is not installed; on Debian: apt-get"):
        instructions.count_instructions(ROW, "trivium")


@needs_valgrind
def test_only_our_storage_is_measured_alone() -> None:
    with pytest.raises(ServerError, match="mosquitto has no storage"):
        instructions.count_instructions(STORAGE_APPEND, "mosquitto")


def test_the_rows_are_scenarios_and_the_storage() -> None:
    assert set(ROWS) - set(SCENARIOS) == {STORAGE_APPEND, STORAGE_RECOVERY}


def test_every_row_has_a_record() -> None:
    assert list(read_record().rows) == list(ROWS)


def test_what_is_recorded_is_read_again(document: Path) -> None:
    write_record([counted(OTHER, 1234.6), counted(ROW, 9.4)], "abc123")
    assert read_record() == Record(
        this_platform(), {ROW: Recorded(9, "abc123"), OTHER: Recorded(1235, "abc123")}
    )
    text = document.read_text()
    assert f"| `{OTHER}` | 1,235 | abc123 |\n" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    write_record([counted(ROW, 8)], "def456")
    assert read_record().rows == {ROW: Recorded(8, "def456"), OTHER: Recorded(1235, "abc123")}


def test_a_record_of_another_platform_is_replaced_as_a_whole(document: Path) -> None:
    rows = f"Counted with Python 2.7 on vax:\n\n| `{OTHER}` | 10 | abc123 |\n"
    document.write_text(EMPTY.format(rows))
    assert compare(counted(OTHER, 1e6), read_record()).recorded is None
    with pytest.raises(ServerError, match=r"the record is of Python 2\.7 on vax: count all rows"):
        write_record([counted(ROW, 8)], "def456")
    write_record([counted(ROW, 8), counted(OTHER, 9)], "def456")
    assert read_record().rows[OTHER] == Recorded(9, "def456")


def test_a_document_without_a_place_for_the_record_is_refused(document: Path) -> None:
    document.write_text("nothing")
    with pytest.raises(ServerError, match="no place for the record"):
        read_record()


@pytest.mark.parametrize(("per_message", "is_above"), [(430, False), (431, True)])
def test_a_row_of_few_instructions_may_take_what_the_clock_does(
    per_message: float, is_above: bool
) -> None:
    recorded = Record(this_platform(), {ROW: Recorded(400, "abc123")})
    assert compare(counted(ROW, per_message), recorded).is_above == is_above


@pytest.mark.parametrize(("per_message", "is_above"), [(900, False), (1050, False), (1051, True)])
def test_a_row_may_take_five_per_cent_more_than_its_record(
    per_message: float, is_above: bool
) -> None:
    recorded = Record(this_platform(), {ROW: Recorded(1000, "abc123")})
    found = compare(counted(ROW, per_message), recorded)
    assert found.is_above == is_above
    assert f"recorded 1,000 at abc123, ratio {per_message / 1000:.3f}" in str(found)
    assert str(found).endswith("above 1.05") == is_above
    for server in ("trivium-interpreted", "trivium@base", "mosquitto"):
        assert not compare(counted(ROW, per_message, server), recorded).is_above


@pytest.mark.parametrize(("now", "status"), [(1000, 0), (1100, 1)])
def test_the_command_compares_all_rows_and_fails_above_the_record(
    now: int,
    status: int,
    document: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def count(row: str, server: str, **_: object) -> Instructions:
        return counted(row, now if row == OTHER else 1000, server)

    monkeypatch.setattr(commands, "count_instructions", count)
    write_record([counted(row, 1000) for row in ROWS], "abc123")
    assert commands.main(["--instructions"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ROWS)
    assert all("recorded 1,000 at abc123" in line for line in lines)
    assert sum("above" in line for line in lines) == status


@pytest.mark.parametrize(
    ("counts", "least"), [([1000], 1000), ([1200, 1010], 1010), ([1200, 1100, 1300], 1100)]
)
def test_a_row_above_its_record_is_counted_again_and_the_least_counts(
    counts: list[int],
    least: int,
    document: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = iter(counts)
    monkeypatch.setattr(
        commands, "count_instructions", lambda row, server, **_: counted(row, next(found), server)
    )
    write_record([counted(ROW, 1000)], "abc123")
    assert commands.main(["--instructions", "--scenario", ROW]) == (least > 1050)
    assert f"{least:,} instructions/message" in capsys.readouterr().out
    assert not list(found)


def test_the_command_records_what_it_counted(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(row: str, server: str, **_: object) -> Instructions:
        return counted(row, 7, server)

    monkeypatch.setattr(commands, "count_instructions", count)
    monkeypatch.setattr(commands, "measured_commit", lambda: "abc123")
    servers = ["--server", "trivium", "--server", "trivium-interpreted"]
    assert commands.main(["--instructions", "--record", *servers]) == 0
    assert read_record().rows == dict.fromkeys(ROWS, Recorded(7, "abc123"))


def test_a_row_that_cannot_be_counted_fails_the_command(
    document: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def count(row: str, server: str, **_: object) -> Instructions:
        if row == OTHER:
            raise ServerError("not today")
        return counted(row, 1)

    monkeypatch.setattr(commands, "count_instructions", count)
    assert commands.main(["--instructions"]) == 1
    captured = capsys.readouterr()
    assert "not today" in captured.err
    assert len(captured.out.splitlines()) == len(ROWS)


def test_a_profile_is_kept_of_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--instructions", "--keep", "profile"]) == 2
    assert "one row only" in capsys.readouterr().err
