"""docs/testing-coverage.md, "Sentences": each stands in the code, and what implements and what breaks it exist."""

import ast
from pathlib import Path

import pytest
import sentences

from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.switches import RULES, SHIPPED

ROOT = Path(__file__).resolve().parents[2]
ALL = [pytest.param(each, id=each.words[:40]) for of_one in sentences.SENTENCES.values() for each in of_one]


@pytest.mark.parametrize("source", sentences.SENTENCES)
def test_each_source_has_ten_sentences(source):
    assert len({each.words for each in sentences.SENTENCES[source]}) >= 10
    assert f"\n## {source}\n" in (ROOT / "docs/sources.md").read_text()


@pytest.mark.parametrize("sentence", ALL)
def test_one_search_finds_a_sentence(sentence):
    assert sentences.stands_in(sentence.words), f"no line of {sentences.PLACES} has {sentence.words!r}"


@pytest.mark.parametrize("words", [words for later in sentences.NEXT.values() for words in later])
def test_a_sentence_that_is_next_is_cited_by_a_test_alone(words):
    assert [path.split("/")[0] for path in sentences.stands_in(words)] == ["tests"]


@pytest.mark.parametrize("sentence", ALL)
def test_what_implements_a_sentence_exists_and_the_mutant_takes_it_out(sentence):
    mutant = MUTANTS[sentence.mutant]
    assert mutant.switches != SHIPPED
    if ":" not in sentence.by:
        assert hasattr(RULES, sentence.by)
        assert sentence.by in mutant.rules, f"{mutant.name} replaces {mutant.rules}"
        return
    path, _, name = sentence.by.partition(": ")
    tree = ast.parse((ROOT / "src/quire" / path).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    names |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert name in names
    assert not mutant.rules, (
        f"{mutant.name} replaces the rules {mutant.rules}: one of them implements the sentence"
    )


def test_what_is_not_in_the_code_is_not_found():
    assert sentences.stands_in("a sentence " + "that no document has") == []
