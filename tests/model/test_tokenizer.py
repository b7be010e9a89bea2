"""A tokenizer file is read once, and again when it changes."""

import os

from comem_cli.model import load
from tests.tiny import save_tiny, tiny_tokenizer


def test_one_file_gives_one_tokenizer_until_it_changes(tmp_path):
    save_tiny(tmp_path / "tiny", layers=2)
    files = load.resolve(str(tmp_path / "tiny"))
    first = load.tokenizer(files)
    assert load.tokenizer(files) is first
    load.identity(files)
    assert load.tokenizer(files) is first
    assert first.truncation is None and first.padding is None and first.encode_special_tokens
    other = tiny_tokenizer()
    other.add_tokens(["zyxwvut"])
    other.save(str(files.tokenizer_file))
    os.utime(files.tokenizer_file, ns=(1, 1))
    changed = load.tokenizer(files)
    assert changed is not first and changed.token_to_id("zyxwvut") is not None
    assert first.token_to_id("zyxwvut") is None
