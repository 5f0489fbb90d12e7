"""A reply is cut into clauses that can be spoken, however it comes in pieces, and nothing of it is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_tts.clauses import LONGEST_CLAUSE, Clause, ClauseSplitter

# What replies are made of, in every order: words, marks, numbers, abbreviations, white space, other scripts.
PARTS = ["word", "a", "Dr.", "e.g.", "3.14", "1,000", "1.", " ", "  ", "\n", ".", "!", "?", "…", ",", ";", ":", "—"]
PARTS += ["–", " and ", "that", " who", "the", '"', ")", "*", "😀", "你好", "。", "」", "，", "x" * 90, " " * 70]
replies = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PARTS), max_size=80).map("".join))


def clauses(fragments: Iterable[str]) -> list[Clause]:
    splitter = ClauseSplitter()
    return [clause for fragment in fragments for clause in splitter.feed(fragment)] + list(splitter.flush())


def texts(reply: str) -> list[str]:
    return [clause.text for clause in clauses([reply])]


@given(replies)
def test_the_clauses_are_the_reply(reply: str) -> None:
    made = clauses([reply])
    assert "".join(clause.text for clause in made) == reply
    assert all(reply[clause.start : clause.end] == clause.text for clause in made)
    assert all(1 <= len(clause.text) <= LONGEST_CLAUSE for clause in made)


@given(replies, st.lists(st.integers(0, 300), max_size=30))
def test_how_the_reply_comes_in_pieces_makes_no_difference(reply: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(reply)) for cut in cuts), len(reply)]
    fragments = [reply[start:end] for start, end in pairwise(edges)]
    assert clauses(fragments) == clauses(reply) == clauses([reply])


@pytest.mark.parametrize(
    "reply",
    [
        "It is 3.14 or so.",
        "It has 1,000 and 2,100,000 people.",
        "We met at 10:30 today.",
        "Dr. Smith met Mrs. Jones.",
        "They came at 5 p.m. on Monday.",
        "It was J. R. R. Tolkien.",
        "1. First of all.",
        "See www.example.com/a,b for more.",
        "It lasted from 1990–1995.",
        "I, for one.",
        "I like cats and dogs.",
        "I do not know what you would like that for.",
        "This is the house of Jack and Jill.",
    ],
)
def test_this_is_one_clause(reply: str) -> None:
    assert texts(reply) == [reply]


@pytest.mark.parametrize("reply", ["Yes, it is.", "Oh: well; no.", "There was a robot in the house and he was big."])
def test_this_is_one_clause_when_the_listener_already_hears_something(reply: str) -> None:
    assert texts(f"Hi! {reply}") == ["Hi!", f" {reply}"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Yes, it is.", ["Yes,", " it is."]),
        ("*\n– So, it is.", ["*\n", "– So,", " it is."]),
        ("I like fruit, e.g. apples.", ["I like fruit,", " e.g. apples."]),
        ("Once there was a robot who lived by the sea and", ["Once there was a robot", " who lived by the sea and"]),
        ("I am not so sure because it is far.", ["I am not so sure", " because it is far."]),
        ("It may be a good idea that we go.", ["It may be a good idea", " that we go."]),
        ("I am sure that it is and that he was so.", ["I am sure that it is and that he was so."]),
        ("It is red and it is so big and it is here.", ["It is red and it is so big", " and it is here."]),
    ],
)
def test_the_first_clause_ends_early(reply: str, expected: list[str]) -> None:
    assert texts(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Yes. It is.", ["Yes.", " It is."]),
        ("Really?! Yes!", ["Really?!", " Yes!"]),
        ("Well... maybe.", ["Well...", " maybe."]),
        ('He said "No." Then he left.', ['He said "No."', " Then he left."]),
        ("**Paris.** It is big.", ["**Paris.**", " It is big."]),
        ("The capital of France is Paris, a big city.", ["The capital of France is Paris,", " a big city."]),
        ("There are seven days: Monday and so on.", ["There are seven days:", " Monday and so on."]),
        ("It was a long day—he was tired.", ["It was a long day—", "he was tired."]),
        ("It was a long day – he was tired.", ["It was a long day –", " he was tired."]),
        ("A title\n\n- one\n- two", ["A title\n", "\n- one\n", "- two"]),
        ("It was in 1990. Then he left.", ["It was in 1990.", " Then he left."]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("", []),
    ],
)
def test_these_are_several(reply: str, expected: list[str]) -> None:
    assert texts(reply) == expected


def test_a_clause_is_given_out_as_soon_as_its_end_is_certain() -> None:
    splitter = ClauseSplitter()
    assert list(splitter.feed("It is Paris.")) == []
    assert list(splitter.feed(" ")) == [Clause("It is Paris.", 0, 12)]
    assert list(splitter.feed("I think")) == []
    assert list(splitter.flush()) == [Clause(" I think", 12, 20)]
    assert list(splitter.flush()) == []


def test_a_sentence_that_goes_on_and_on_is_cut_between_words() -> None:
    made = texts("and so on " * 40)
    assert len(made) == 4
    assert all(len(text) > LONGEST_CLAUSE - 10 for text in made[:-1])
    assert all(text.strip().endswith(("and", "so", "on")) for text in made)


def given_out(reply: str) -> list[str]:
    """Clauses and beginnings, word by word, as in `The cat | sat`: what is said | what follows."""
    splitter, made = ClauseSplitter(), []
    for word in re.findall(r"\s*\S+", reply):
        made += [clause.text for clause in splitter.feed(word)]
        if beginning := splitter.beginning():
            made.append(f"{beginning.words.text}| {beginning.next_word}")
    return made + [clause.text for clause in splitter.flush()]


def test_the_first_clause_is_begun_before_it_has_ended() -> None:
    assert given_out("The capital of France is Paris. And the capital of Italy is Rome.") == [
        "The capital | of",
        "The capital of France is Paris.",
        " And the capital of Italy is Rome.",
    ]


def test_a_long_one_is_gone_on_with_each_time_twice_as_far() -> None:
    reply = " ".join(f"w{number}" for number in range(1, 20))
    assert [made.count("w") for made in given_out(reply)] == [3, 6, 12, 19]


@pytest.mark.parametrize(
    "reply",
    ["I am.", "Well, that is it then.", "One of *them* is mine.", "Dr. Who is a film.", "See x.y or a, b."],
)
def test_what_is_short_or_not_only_words_is_not_begun(reply: str) -> None:
    assert not any("|" in made for made in given_out(reply))


def test_a_clause_ends_nowhere_in_what_is_begun_of_it() -> None:
    # Word by word the joint "and he" comes too late to cut before it.
    assert given_out("It is a dog or cat of an old aunt and his and so on") == [
        "It is | a",
        "It is a dog or | cat",
        "It is a dog or cat of an old aunt and | his",
        "It is a dog or cat of an old aunt and his and so on",
    ]


@given(replies, st.lists(st.integers(0, 300), max_size=30))
def test_what_is_begun_is_the_beginning_of_a_clause(reply: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(reply)) for cut in cuts), len(reply)]
    splitter, begun, made = ClauseSplitter(), [], []
    for start, end in pairwise(edges):
        made += splitter.feed(reply[start:end])
        if beginning := splitter.beginning():
            begun.append(beginning)
    made += splitter.flush()
    assert "".join(clause.text for clause in made) == reply
    for before, after in pairwise(begun):
        assert before.words.end < after.words.end
    for beginning in begun:
        words = beginning.words
        (clause,) = [clause for clause in made if clause.start == words.start]
        assert clause.text.startswith(words.text)
        assert reply[words.end :].startswith(beginning.next_word)
