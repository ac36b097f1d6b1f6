"""What pages say of bench/results: codes in one place, each claim understandable alone, and README names the worst."""

import re
from pathlib import Path

import bench_tables
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = bench_tables.results()
FAMILIES = sorted({claim["claim"].split("-")[0] for claim in CLAIMS if re.match(r"[PS]\d", claim["claim"])})
CODE = re.compile(rf"(?<!--claim )(?<!service: )\b(?:{'|'.join(FAMILIES)})\b")
OTHER_CODES = {"testing-coverage.md"}
"""Its S1 to S10 are slips in published specifications. README names the service S2, too."""


def test_only_the_page_of_performance_has_codes_of_claims():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    others = [page for page in pages if page.name not in {"performance.md", *OTHER_CODES}]
    assert {page.name: codes for page in others if (codes := CODE.findall(page.read_text()))} == {}


def test_a_claim_is_understood_without_its_neighbours():
    texts = [claim["text"] for claim in CLAIMS]
    assert len(set(texts)) == len(texts)
    assert [text for text in texts if text.startswith("the same")] == []


def test_readme_must_name_the_worst_figure(monkeypatch):
    worse = [{**claim, "ratio": 0.05} if claim["claim"] == "P18-1,000" else claim for claim in CLAIMS]
    monkeypatch.setattr(bench_tables, "results", lambda: worse)
    with pytest.raises(ValueError, match="P18-1,000"):
        bench_tables.in_words()


def test_a_peer_that_was_tuned_is_called_so():
    named = {claim["claim"]: bench_tables.kinds(claim) for claim in CLAIMS}
    assert named["P4-10KB"] == ["Java V2 tuned"]
    assert named["P1"] == ["Java V2"]
