"""Cuts a reply into clauses while it is still being written.

A clause is what is spoken in one breath: it ends where a sentence or a line ends, or at a comma when it is
long enough. It is given out as soon as its end is certain, which takes one character more: "3." may go on
as "3.14". How the reply came in pieces makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SHORTEST_PART_OF_SENTENCE = 16
LONGEST_CLAUSE = 120

CLOSING = "\"'”’»)\\]}*_`"
END = re.compile(
    rf"(?P<sentence>[.!?…]+[{CLOSING}]*(?=\s)|[。！？]+[{CLOSING}」』]*(?=[^。！？{CLOSING}」』]))"
    rf"|(?P<part>[,;:][{CLOSING}]*(?=\s)|[，；：、—](?=.)|–(?=\s))"
    r"|(?P<line>\n)"
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


class ClauseSplitter:
    """The clauses of one reply, concatenated, are its text: nothing is left out, white space included."""

    def __init__(self) -> None:
        self.given_out = 0
        """Where the next clause starts, in code points of the reply."""
        self._waiting = ""

    def feed(self, text: str) -> Iterator[Clause]:
        """The clauses whose end is certain now."""
        self._waiting += text
        while length := _first_end(self._waiting):
            yield self._take(length)

    def flush(self) -> Iterator[Clause]:
        """What is left when the reply has ended: at most one clause."""
        if self._waiting:
            yield self._take(len(self._waiting))

    def _take(self, length: int) -> Clause:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        start, self.given_out = self.given_out, self.given_out + length
        return Clause(text, start, self.given_out)


def _first_end(waiting: str) -> int:
    """How long the first clause is; 0 while that isn't certain."""
    for end in END.finditer(waiting, 0, LONGEST_CLAUSE + 1):
        if end.end() <= LONGEST_CLAUSE and _is_end(waiting[: end.end()].strip(), end):
            return end.end()
    return _last_word_end(waiting[:LONGEST_CLAUSE]) if len(waiting) > LONGEST_CLAUSE else 0


def _is_end(clause: str, end: re.Match[str]) -> bool:
    if end["part"]:
        return len(clause) >= SHORTEST_PART_OF_SENTENCE
    if end["sentence"]:
        return not (NUMBERED_ITEM.fullmatch(clause) or ABBREVIATION.search(clause.rstrip(CLOSING)))
    return clause != ""


def _last_word_end(text: str) -> int:
    words = text.rstrip() if text[-1].isspace() else text.rpartition(" ")[0].rstrip()
    return len(words) or len(text)
