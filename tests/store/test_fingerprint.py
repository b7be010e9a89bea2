from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import fingerprint

from comem_cli.errors import FingerprintError
from comem_cli.store.fingerprint import Fingerprint, chunk_key


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Fingerprint)])
def test_a_difference_in_any_field_changes_the_digest_and_is_refused_by_name(name):
    mine = fingerprint()
    old = getattr(mine, name)
    other = fingerprint(**{name: old + 1 if isinstance(old, int) else old + "x"})
    assert mine.digest() != other.digest()
    assert mine.differences(other) == [(name, old, getattr(other, name))]
    with pytest.raises(FingerprintError, match=name) as caught:
        mine.require_same(other)
    assert str(old) in caught.value.message and str(getattr(other, name)) in caught.value.message
    assert caught.value.exit_code == 12


def test_equal_fingerprints_agree_and_survive_a_dictionary():
    mine = fingerprint()
    mine.require_same(Fingerprint.from_dict(mine.to_dict()))
    assert mine.digest() == Fingerprint.from_dict(mine.to_dict()).digest()
    with pytest.raises(FingerprintError, match="shapes"):
        Fingerprint.from_dict({key: value for key, value in mine.to_dict().items() if key != "shapes"})


@given(st.binary(max_size=12), st.binary(max_size=12), st.integers(0, 12))
def test_moving_tokens_between_context_and_chunk_changes_the_key(left, ids, cut):
    digest = fingerprint().digest()
    whole = left + ids
    moved = whole[:cut], whole[cut:]
    same = moved == (left, ids)
    assert (chunk_key(digest, left, ids) == chunk_key(digest, *moved)) is same
    assert len(chunk_key(digest, left, ids)) == 32
