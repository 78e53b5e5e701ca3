"""What waits for checkpoints is counted for logs and for rows apart."""

from __future__ import annotations

from trivium.storage.checkpoint.journal_backlog import MAX_CHECKPOINTS, JournalBacklog

SIZE = 100


def due(backlog: JournalBacklog) -> tuple[bool, bool]:
    return backlog.are_logs_due, backlog.are_rows_due


def test_both_are_due_once_enough_was_written_since_they_were_begun() -> None:
    backlog = JournalBacklog(SIZE, 40)
    backlog.add(SIZE - 41)
    assert due(backlog) == (False, False)
    backlog.add(1)
    assert due(backlog) == (True, True)
    backlog.begin_rows()
    assert due(backlog) == (True, False)
    backlog.begin_logs()
    assert (*due(backlog), backlog.has_logs) == (False, False, False)


def test_a_checkpoint_that_is_asked_for_has_logs() -> None:
    backlog = JournalBacklog(SIZE, 0)
    backlog.ask_for_logs()
    assert due(backlog) == (True, False)


def test_messages_may_wait_for_two_checkpoints() -> None:
    backlog = JournalBacklog(SIZE, 0)
    backlog.add(SIZE)
    backlog.begin_logs()
    backlog.add(SIZE)
    assert backlog.excess == 0
    backlog.add(7)
    assert backlog.excess == 7
    backlog.end_logs()
    assert backlog.excess == 0


def test_the_journal_may_hold_that_of_more_checkpoints_for_rows() -> None:
    backlog = JournalBacklog(SIZE, 0)
    backlog.add(SIZE)
    backlog.begin_rows()
    for _ in range(MAX_CHECKPOINTS):
        backlog.begin_logs()
        backlog.add(SIZE)
        backlog.end_logs()
    backlog.begin_logs()
    backlog.end_logs()
    assert backlog.excess == SIZE
    backlog.end_rows()
    assert backlog.excess == 0
