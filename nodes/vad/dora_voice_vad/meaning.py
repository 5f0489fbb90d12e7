"""Whether what the user says over a reply is meant to interrupt it."""

from __future__ import annotations

import re

BACKCHANNELS = {
    "en": "mm | mmm | hm | hmm | mhm | mm hmm | mm hm | uh | uh huh | um | ah | aha | oh | ooh | huh | wow | yeah | "
    "yep | okay | ok | right | i see | sure | got it",
    "de": "mm | mhm | hm | hmm | äh | ähm | ah | aha | oh | ach | ach so | ja ja | genau | okay | ok | klar | stimmt",
    "zh": "嗯 | 哦 | 噢 | 喔 | 啊 | 呃 | 唔 | 对 | 是的 | 好的 | 好吧 | 这样啊 | 明白 | 知道了",
}
"""What listeners say to show that they listen, by language. Yes, no and stop are answers."""


def backchannels(language: str | None) -> str:
    """Those of a language code such as `en` or `de-AT`; the English ones where there are none."""
    return BACKCHANNELS.get((language or "en").partition("-")[0].lower(), BACKCHANNELS["en"])


def is_backchannel(text: str, phrases: str) -> bool:
    """Whether a transcript holds nothing but these phrases, separated by |. One without a word does."""
    rest = " ".join(_words(text))
    for phrase in sorted((" ".join(_words(phrase)) for phrase in phrases.split("|")), key=len, reverse=True):
        rest = re.sub(rf"(?<!\S){re.escape(phrase)}(?!\S)", "", rest) if phrase else rest
    return not rest.strip()


def is_echo(text: str, just_said: str, *, is_final: bool) -> bool:
    """Whether a transcript only repeats a piece of what was just said to the user. A single word is an answer."""
    words, said = _words(text), _words(just_said)
    fewest = 2 if is_final else 1
    return len(words) >= fewest and any(said[i : i + len(words)] == words for i in range(len(said) - len(words) + 1))


def _words(text: str) -> list[str]:
    """Lower case, without punctuation; Chinese characters one by one."""
    return re.findall(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+(?:['’][^\W_\u3400-\u9fff]+)*", text.lower())
