"""Cuts a reply into clauses while it is still being written.

A clause is what is spoken in one breath: it ends where a sentence or a line ends, or at a comma when it is
long enough. It is given out as soon as its end is certain, which takes one character more: "3." may go on
as "3.14". How the reply came in pieces makes no difference.

The first clause is what the listener waits for. So it ends at the first comma, however short it is, and, after some
words without one, before a word that joins what follows, as "and" or "because" do. And its first words are given out
before it has ended, if they are nothing but words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SHORTEST_PART_OF_SENTENCE = 16
LONGEST_CLAUSE = 120
SHORTEST_FIRST_PART = 2
"""In letters and digits: "So, …" but not "I, …"."""
FEWEST_WORDS_BEFORE_JOINT = 5
FIRST_WORDS = 2
"""That are given out before the first clause has ended. Then twice as many and one more, and so on."""
PLAIN = re.compile(r"[\w' ]+")

CLOSING = "\"'”’»)\\]}*_`"
GOES_ON = "I|you|he|she|it|we|they|there|is|are|was|were|can|will|has|have|the|an?|this|my|your|his|her|our|their"
JOINTS = (
    "because|which|who|when|where|while|if|although|until"
    # "… and he …", "… that the …", but not "Jack and Jill", "I like that dog".
    rf"|(?:and|but|or|so|that)(?= (?:{GOES_ON})\s)"
)
NO_JOINT_AFTER = re.compile(
    r"\b(?:an?|the|and|but|or|so|if|of|in|on|at|to|for|from|with|by|about|into|than|as|like|is|are|was|were|not|even)$",
    re.IGNORECASE,
)
END = re.compile(
    rf"(?P<sentence>[.!?…]+[{CLOSING}]*(?=\s)|[。！？]+[{CLOSING}」』]*(?=[^。！？{CLOSING}」』]))"
    rf"|(?P<part>[,;:][{CLOSING}]*(?=\s)|[，；：、—](?=.)|–(?=\s))"
    r"|(?P<line>\n)"
    rf"|(?P<joint>(?<=\w)(?= +(?:{JOINTS})\s))"
)
ABBREVIATION = re.compile(
    r"(?:(?<!\w)(?:[^\W\d_]\.)+|\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|vs|etc|approx|cf|Fig|Vol)\.)$", re.IGNORECASE
)
NUMBERED_ITEM = re.compile(r"\s*\d+\.")


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of the reply's own text and where it stands there, in code points."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of the first clause."""

    words: Clause
    """Complete ones, all from its start on."""
    next_word: str
    """As far as it is known."""


class ClauseSplitter:
    """The clauses of one reply, concatenated, are its text: nothing is left out, white space included."""

    def __init__(self) -> None:
        self.given_out = 0
        """Where the next clause starts, in code points of the reply."""
        self._waiting = ""
        self._is_first = True
        """Whether nothing that can be said has been given out."""
        self._begun = 0
        """So much of what waits has been given out as a beginning."""
        self._enough_words = FIRST_WORDS

    def feed(self, text: str) -> Iterator[Clause]:
        """The clauses whose end is certain now."""
        self._waiting += text
        while length := _first_end(self._waiting, self._is_first, self._begun):
            yield self._take(length)

    def beginning(self) -> Beginning | None:
        """The first clause's complete words, if they are enough and more than the last time."""
        words = self._waiting.split()
        if not self._is_first or len(words) <= self._enough_words or not PLAIN.fullmatch(self._waiting):
            return None
        self._enough_words = 2 * len(words) - 1
        self._begun = length = self._waiting.rindex(words[-1])
        return Beginning(Clause(self._waiting[:length], self.given_out, self.given_out + length), words[-1])

    def flush(self) -> Iterator[Clause]:
        """What is left when the reply has ended: at most one clause."""
        if self._waiting:
            yield self._take(len(self._waiting))

    def _take(self, length: int) -> Clause:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        start, self.given_out = self.given_out, self.given_out + length
        self._is_first &= _letters(text) == 0
        self._begun = 0
        return Clause(text, start, self.given_out)


def _first_end(waiting: str, is_first: bool, begun: int) -> int:
    """How long the first clause is; 0 while that isn't certain. begun: at least so long."""
    for end in END.finditer(waiting, begun, LONGEST_CLAUSE + 1):
        if end.end() <= LONGEST_CLAUSE and _is_end(waiting[: end.end()].strip(), end, is_first):
            return end.end()
    return max(begun, _last_word_end(waiting[:LONGEST_CLAUSE])) if len(waiting) > LONGEST_CLAUSE else 0


def _is_end(clause: str, end: re.Match[str], is_first: bool) -> bool:
    if end["part"]:
        return _letters(clause) >= SHORTEST_FIRST_PART if is_first else len(clause) >= SHORTEST_PART_OF_SENTENCE
    if end["joint"] is not None:
        return is_first and len(clause.split()) >= FEWEST_WORDS_BEFORE_JOINT and not NO_JOINT_AFTER.search(clause)
    if end["sentence"]:
        return not (NUMBERED_ITEM.fullmatch(clause) or ABBREVIATION.search(clause.rstrip(CLOSING)))
    return clause != ""


def _letters(text: str) -> int:
    """Letters and digits, which are all that is heard."""
    return sum(character.isalnum() for character in text)


def _last_word_end(text: str) -> int:
    words = text.rstrip() if text[-1].isspace() else text.rpartition(" ")[0].rstrip()
    return len(words) or len(text)
