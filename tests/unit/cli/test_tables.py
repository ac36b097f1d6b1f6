"""Tables on terminals of every width: columns go, ids stay whole."""

import pytest

from quire.cli.console import output
from quire.cli.console.output import Output
from quire.cli.console.tables import cells, draw_table

HEADS = ("id", "address", "standing", "free", "needs")
ROWS = [
    ["bookie-1.k3x9q", "127.0.0.1:40001", "up", "50.0 GiB of 100.0 GiB", "-"],
    ["bücher-世界-2.abcde", "127.0.0.1:40002", "down", "-", "its directory is on a disk that is nearly full"],
]


def test_a_narrow_terminal_loses_columns_and_no_id_is_cut() -> None:
    for width in range(10, 140):
        columns_that_fit(width)


def columns_that_fit(width: int) -> None:
    drawn = draw_table(HEADS, ROWS, width, ("free", "address"))
    shown = [head for head in HEADS if head not in drawn.left_out]
    assert drawn.head.split("  ")[0] == "id"
    assert " ".join(drawn.head.split()) == " ".join(shown)
    for row in ROWS:
        assert any(line.startswith(row[0]) for line in drawn.lines)
    if len(shown) > 1:
        assert all(cells(line) <= width for line in [drawn.head, *drawn.lines])
    if {"free", "address"} - set(drawn.left_out):
        assert not set(drawn.left_out) - {"free", "address"}, "the others go later"


def test_what_is_left_out_is_named_and_without_a_terminal_nothing_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows = Output(as_json=False), [dict(zip(HEADS, row, strict=True)) for row in ROWS]
    out.rows(HEADS, rows)
    assert "50.0 GiB of 100.0 GiB" in capsys.readouterr().out
    monkeypatch.setattr(output, "terminal_width", lambda: 60)
    out.rows(HEADS, rows, least=("free", "address"))
    shown = capsys.readouterr()
    assert shown.err == "Without address, free: a wider terminal shows them, and --json has all.\n"
    assert "\x1b[1m" in shown.out
