"""One writer and many readers; two writers. The loops take a count, so that longer runs use the same code."""

from __future__ import annotations

from tests.faults import loop_readers, loop_writers


def test_every_read_beside_a_writer_is_of_one_generation_and_none_fails(tmp_path):
    outcome = loop_readers.run(tmp_path, reads=80, readers=4)
    assert outcome.errors == ()
    assert outcome.reads == 80 and outcome.generations > 3


def test_of_two_writers_one_is_refused_with_the_others_name_and_no_commit_is_lost(tmp_path):
    outcome = loop_writers.run(tmp_path, rounds=20)
    assert outcome.lost == 0 and outcome.unnamed == ()
    assert outcome.refused > 0
