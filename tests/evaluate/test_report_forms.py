"""The three forms of a report say the same as its rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.report import report
from comem_cli.evaluate.report_file import write_report
from comem_cli.evaluate.report_markdown import markdown
from comem_cli.evaluate.report_svg import svg
from comem_cli.evaluate.report_tsv import MACRO, tsv
from tests.evaluate.sample_records import CHUNK, OVERLAP, REPLAY, a_run, record

SVG = "{http://www.w3.org/2000/svg}"
ODD = "comem:j=12,adapter=a|b<c>&\x00\n\u2028é"


@cache
def whole():
    return report(a_run())


def tables(text):
    """Return the tables of Markdown as lists of fields, the rule left out."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    return [[line.strip("| ").split(" | ") for line in lines if "---" not in line] for lines in blocks]


def test_markdown_gives_points_with_intervals():
    records = [record("0", 1.0), record("1", 1.0), record("0", 1.0, CHUNK), record("1", 0.0, CHUNK)]
    ((header, replay, comem),) = tables(markdown(report(records)))
    assert dict(zip(header, comem, strict=True)) == {
        "cell": "niah:2048",
        "arm": CHUNK,
        "n": "2",
        "score": "50.0 [9.5, 90.5]",
        "Δ": "-50.0 [-100.0, 0.0]",
        "kept": "50.0 (n 2)",
        "alone right": "0 : 1",
        "p": "1",
        "hit": "100.0",
        "at hit": "50.0 (n 2)",
        "recall": "100.0",
        "errors": "0",
        "pack": "1000",
    }
    assert replay[3:8] == ["100.0 [34.2, 100.0]", "–", "–", "–", "–"]


def test_markdown_has_a_section_a_cohort_and_names_what_is_missing():
    records = [one for one in a_run() if one.key[1:] != ("3", OVERLAP)]
    text = markdown(report(records))
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## qa", "## ruler"]
    qa, ruler, macro = tables(text)
    assert [len(qa), len(ruler), len(macro)] == [4, 10, 4]
    assert "19, 1 missing" in {line[2] for line in ruler}
    assert {line[2] for line in macro[1:]} == {"60", "57, 3 missing"}
    assert {len(line) for table in (qa, ruler) for line in table} == {14}


def test_markdown_survives_odd_names():
    ((_, line),) = tables(markdown(report([record("0", 1.0, ODD)])))
    assert line[1] == "comem:j=12,adapter=a\\|b&lt;c>&   é"


def test_tsv_is_rectangular_and_holds_the_raw_numbers():
    found = whole()
    header, *lines = tsv(found)
    assert {len(line) for line in lines} == {len(header)} == {len(set(header))}
    assert len(lines) == len(found.cells) + len(found.macros)
    for row, line in zip(found.cells, lines, strict=False):
        values = dict(zip(header, line, strict=True))
        assert (values["cell"], values["arm"], values["interval"]) == (row.cell, row.arm, row.interval)
        assert float(values["score"]) == pytest.approx(row.score.value, rel=1e-5)
        assert float(values["hit_rate"]) == pytest.approx(row.hit_rate, rel=1e-5)
        assert (values["difference"] == "") == (row.arm == REPLAY)
        assert (values["first_token_equal"] == "") == (row.arm == REPLAY)
    macro = dict(zip(header, lines[-1], strict=True))
    last = found.macros[-1]
    assert (macro["cell"], macro["arm"], macro["cells"]) == (MACRO, last.arm, "3")
    assert float(macro["hierarchical_low"]) == pytest.approx(last.against.hierarchical.low, rel=1e-5)
    assert float(macro["left_out_high"]) == pytest.approx(last.against.left_out[1], rel=1e-5)


def test_tsv_fields_hold_no_tab_or_newline():
    lines = tsv(report([record("0", 1.0, "a\tb\nc", cohort="x\ty")]))
    assert not any(set(field) & set("\t\n") for line in lines for field in line)


def test_the_plot_puts_every_score_on_its_scale():
    found = whole()
    root = Xml.fromstring(svg(found))
    texts = [(float(one.get("x")), one.text) for one in root.iter(f"{SVG}text")]
    zero, hundred = (next(x for x, text in texts if text == tick) for tick in ("0", "100"))
    marks = [float(one.get("cx")) for one in root.iter(f"{SVG}circle")]
    marks += [float(one.get("x")) + 4 for one in root.iter(f"{SVG}rect") if one.get("x")]
    wanted = [zero + (hundred - zero) * row.score.value for row in found.cells]
    assert sorted(marks) == pytest.approx(sorted(wanted), abs=0.1)
    whiskers = [one for one in root.iter(f"{SVG}line") if one.get("stroke-width")]
    ends = [(float(one.get("x1")), float(one.get("x2"))) for one in whiskers]
    assert ends == [
        pytest.approx((zero + (hundred - zero) * row.score.low, zero + (hundred - zero) * row.score.high), abs=0.1)
        for row in found.cells
    ]


@pytest.mark.parametrize("name", [REPLAY, ODD, "comem:j=12,adapter=runs/deep_MIXED_Wide", "W" * 80, "m" * 60])
def test_no_label_of_the_plot_leaves_the_view_box_or_reaches_the_next(name):
    font = pytest.importorskip("PIL.ImageFont")
    faces = Path(pytest.importorskip("matplotlib").get_data_path()) / "fonts" / "ttf"  # among the widest in use
    bold, plain = (font.truetype(str(faces / f"DejaVuSans{face}.ttf"), 12) for face in ("-Bold", ""))
    records = [replace(one, arm=name, cohort=name, cell=one.cell + name) for one in a_run() if one.arm == CHUNK]
    root = Xml.fromstring(svg(report(records[:-1])))
    _, _, width, height = map(float, root.get("viewBox").split())
    labels = [
        (float(one.get("x")), (bold if one.get("font-weight") else plain).getlength(one.text), one)
        for one in root.iter(f"{SVG}text")
    ]
    zero = next(x for x, _, one in labels if one.text == "0")
    for x, long, one in labels:
        begin = x - long / 2 if one.get("text-anchor") else x
        assert begin >= 0 and begin + long <= width
        assert 12 <= float(one.get("y")) <= height - 4
        if one.text.endswith(name.replace("\x00\n\u2028", "   ")) and float(one.get("y")) > 70:  # below the cohort
            assert begin + long <= zero - 4


@pytest.mark.parametrize(("ending", "begin"), [(".md", "## qa"), (".tsv", "cohort\tcell"), (".svg", "<svg ")])
def test_the_ending_chooses_the_form(tmp_path: Path, ending, begin):
    path = tmp_path / "new" / f"report{ending}"
    write_report(whole(), path)
    assert path.read_text(encoding="utf-8").startswith(begin)
    with pytest.raises(UsageError, match=r"ends in \.md, \.tsv, \.svg"):
        write_report(whole(), tmp_path / "report.png")


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comem_cli.evaluate.report_file import write_aside

    path = tmp_path / "r.md"
    write_aside(path, "before")

    def full(*args: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_aside(path, "after")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["r.md"]
