"""Tables for papers: what is marked, and names that hold any sign."""

from partwise.reporting.latex import to_latex
from partwise.reporting.tables import Cells


def cells(rows, ranked):
    return Cells("Title", ["method", "last", "MB"], rows, ["MB: bytes"], ["lr: 1 (a)"], ranked)


def test_the_best_is_bold_and_the_second_underlined():
    rows = [["a", "91.20 ± 0.30", "9.0"], ["b", "92.00 ± 1.00", "8.0"], ["c", "-", "7.0"], ["d", "9.10", "6.0"]]
    lines = to_latex(cells(rows, {"last": 1})).splitlines()
    assert lines[:3] == ["% Title", "% lr: 1 (a)", "% MB: bytes"]
    start = lines.index(r"\begin{tabular}{lrr}")
    assert lines[start + 1 :] == [
        r"\toprule",
        r"method & last & MB \\",
        r"\midrule",
        r"a & \underline{91.20 $\pm$ 0.30} & 9.0 \\",
        r"b & \textbf{92.00 $\pm$ 1.00} & 8.0 \\",
        r"c & - & 7.0 \\",
        r"d & 9.10 & 6.0 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_where_lower_is_better_the_lowest_is_bold():
    rows = [["a", "2.000", "1"], ["b", "10.50", "1"], ["c", "1.500", "1"]]
    markdown = cells(rows, {"last": -1}).to_markdown().splitlines()
    assert [line.split(" | ")[1] for line in markdown[6:9]] == ["<u>2.000</u>", "10.50", "**1.500**"]


def test_numbers_that_look_alike_are_marked_alike():
    rows = [["a", "2.00", "1"], ["b", "2.00", "1"], ["c", "1.00", "1"], ["d", "0.50", "1"]]
    markdown = cells(rows, {"last": 1}).to_markdown().splitlines()
    assert [line.split(" | ")[1] for line in markdown[6:10]] == ["**2.00**", "**2.00**", "<u>1.00</u>", "0.50"]


def test_one_row_is_not_the_best_of_anything():
    assert r"\textbf" not in to_latex(cells([["a", "2.00", "1"]], {"last": 1}))


def test_a_name_may_hold_any_sign():
    name = r"50%_{a}&b#$~^\|"
    tex = to_latex(cells([[name, "1", "1"]], {}))
    assert r"50\%\_\{a\}\&b\#\$\textasciitilde{}\textasciicircum{}\textbackslash{}| & 1 & 1 \\" in tex
    assert r"a\|b" in cells([["a|b", "1", "1"]], {}).to_markdown()
