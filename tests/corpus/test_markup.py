from __future__ import annotations

import time

import pytest

from comem_cli.corpus.markup import html_text, is_html, too_nested


def test_blocks_become_lines_and_white_space_collapses() -> None:
    page = "<title>T</title><h1>Head</h1><p>one\n  two <b>three</b></p><div>a<br>b</div><ul><li>x<li>y</ul>"
    assert html_text(page) == "T\nHead\none two three\na\nb\nx\ny\n"


def test_scripts_styles_and_navigation_go() -> None:
    page = (
        "<style>p{}</style><script>var a = '<p>no</p>'</script><nav><a>Home</a></nav>a<nav>x</nav>b"
        "<noscript>no</noscript><template><p>no</p></template><!-- no --><svg><text>no</text></svg><p>yes</p>"
    )
    assert html_text(page) == "a\nb\nyes\n"


def test_pre_stays_verbatim() -> None:
    assert html_text("<p>a</p><pre>  x\n\n\ty <b>z</b>  \n</pre><p>b</p>") == "a\n  x\n\n\ty z  \nb\n"


def test_table_rows_become_lines_of_cells() -> None:
    table = "<table><tr><th>Name<th>Code</tr><tr><td>Dome</td><td>D-7</td></tr></table>"
    assert html_text(table) == "Name | Code\nDome | D-7\n"


def test_entities_are_decoded_and_inline_words_stay_joined() -> None:
    assert html_text("<p>a&amp;b &eacute;&nbsp;x un<b>break</b>able") == "a&b é\xa0x unbreakable\n"


def test_page_without_text_is_empty() -> None:
    assert html_text("<html><body><script>1</script></body></html>") == ""


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.html", "plain", True),
        ("a.XHTML", "plain", True),
        ("a.htm", "plain", True),
        ("page", " \n<!DOCTYPE html><p>x", True),
        ("page", "<html lang='en'>", True),
        ("page", "<?xml version='1.0'?>\n<!doctype html>", True),
        ("notes.md", "<p>Markdown may hold tags</p>", False),
        ("a.xml", "<?xml version='1.0'?><htmlish/>", False),
    ],
)
def test_pages_are_recognised(path: str, text: str, expected: bool) -> None:
    assert is_html(path, text) is expected


def test_nesting_that_would_stall_the_parser_is_noticed_quickly() -> None:
    start = time.process_time()
    assert too_nested("<div>" * 1_000_000)
    assert too_nested("".join(f"<b id={number}><p>" for number in range(100_000)))
    assert time.process_time() - start < 2


def test_long_ordinary_pages_are_not_refused() -> None:
    assert not too_nested("<div><p>x<br><li>y<b>z</b></div>\n" * 50_000)
    assert not too_nested("<div>" * 300 + "x" + "</div>" * 300)


def test_deep_pages_below_the_limit_are_walked_without_recursion() -> None:
    assert html_text("<div>" * 1_900 + "deep") == "deep\n"
