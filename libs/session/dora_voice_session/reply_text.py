"""The text of a reply's tokens as they come: never cut inside a character, ended before a stop text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dora_voice_session.prompt import Anchor

TORN = "\ufffd"
"""What a tokenizer makes of bytes that are no whole character."""


class ReplyText:
    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self.spelled = ""
        """Whole characters so far; the end of it may be the beginning of a stop text."""
        self._context = self._read = 0
        """Tokens from `_context` on are decoded together, because how one is spelled depends on those before it;
        the text of those up to `_read` is spelled already."""
        self.tokens: list[int] = []
        self.text = ""
        """What was given out: the sum of the deltas."""
        self.is_stopped = False
        self.anchors = [Anchor(0, 0)]
        """After so many tokens the text has so many code points, and no character is torn."""

    def add(self, token: int) -> str:
        """The text that this token gives free; empty while a character, or a stop text, may go on."""
        self.tokens.append(token)
        before = self._decode(self.tokens[self._context : self._read])
        decoded = self._decode(self.tokens[self._context :])
        if decoded.endswith(TORN):
            return ""
        self.spelled += decoded[len(before) :]
        self._context, self._read = self._read, len(self.tokens)
        # A control token has no text: it belongs to the text that follows it, or to none.
        if len(self.spelled) > self.anchors[-1].chars:
            self.anchors.append(Anchor(len(self.tokens), len(self.spelled)))
        return self._give_out(held_back=self._stop_or_beginning())

    def end(self) -> str:
        """The text that was still held back. What is torn at the end is left out."""
        return self._give_out(held_back=0)

    def _stop_or_beginning(self) -> int:
        """Cuts the text at the first stop text; else how many characters at its end may be the beginning of one."""
        found = [(at + len(stop), at) for stop in self._stop if (at := self.spelled.find(stop, len(self.text))) >= 0]
        if found:
            # The one that is whole first, so that it makes no difference how the text is cut into tokens.
            _, begin = min(found)
            self.is_stopped = True
            self.spelled = self.spelled[:begin]
            self.anchors = [anchor for anchor in self.anchors if anchor.chars <= len(self.spelled)]
            return 0
        # What was given out begins none: only what is held back already, and what is new, may.
        longest = len(self.spelled) - len(self.text)
        beginnings = (stop[:n] for stop in self._stop for n in range(1, min(len(stop), longest + 1)))
        return max((len(begun) for begun in beginnings if self.spelled.endswith(begun)), default=0)

    def _give_out(self, held_back: int) -> str:
        delta = self.spelled[len(self.text) : len(self.spelled) - held_back]
        self.text += delta
        return delta
