"""Checks the texts of the course: `python course/check_course.py [--write] [CHAPTER …]`, all chapters if none is named.

A chapter's text is run as a reader would run it, from top to bottom, in a copy of the course. What a fenced block is
stands behind its first three backquotes:

    ```python sink.py     (or another language) lines that stand so in this file
    ```diff sink.py       a change that the reader makes in this file
    ```sh                 commands, run in the chapter's folder
    ```text               what the nodes printed in that run, without the time: `node: words`. Which of two nodes
                          was first is left to chance. `--write` puts what was printed into the text
    ```text among         lines that were among what dora printed
    ```text error         lines that were among what dora printed when that run failed

The English text has the same structure as the Chinese one, and the same blocks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COURSE = Path(__file__).parent
CHINESE, ENGLISH = "README.md", "README.en.md"
LONGEST_RUN_S = 120
FENCE = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^\d\d:\d\d:\d\d stdout (\S+: .*)$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|yml|md|toml|wav)\b")
TARGET = re.compile(r"make ([\w-]+)")


class WrongError(Exception):
    """What a text says isn't so."""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    """The language, or `text`, `sh`, `diff`."""
    name: str
    """What stands behind it; empty if nothing does."""
    body: str
    line: int
    """Where its body begins in the text, counted from 1."""


def blocks(text: str) -> list[Block]:
    return [
        Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start(3)) + 1)
        for found in FENCE.finditer(text)
    ]


# Running


class Reader:
    """Does what a chapter's text says, in a copy of the course."""

    def __init__(self, chapter: str, folder: Path) -> None:
        self._original = COURSE / chapter
        self._copy = folder / "course" / chapter
        self._printed: Sequence[str] = ()
        self._all = ""
        shutil.copytree(COURSE, folder / "course", ignore=shutil.ignore_patterns("__pycache__", "out"))
        for command in ("git init -q", "git add .", "git -c user.name=x -c user.email=x@x commit -qm course"):
            subprocess.run(command.split(), cwd=folder, check=True)

    def read(self, block: Block, following: Block | None) -> Sequence[str] | None:
        """Raises WrongError if the block isn't as it is in fact. Of what was printed, the lines that were."""
        match block.kind, block.name:
            case "sh", _:
                self._run(block.body, may_fail=following is not None and following.name == "error")
            case "diff", file:
                self._change(self._copy / file, block.body)
            case "text", "among" | "error":
                self._find(block.body)
            case "text", _:
                return self._printed
            case _, file:
                self._compare(self._original / file, block.body)
        return None

    def _run(self, commands: str, *, may_fail: bool) -> None:
        running = subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", commands],
            cwd=self._copy,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = running.communicate(timeout=LONGEST_RUN_S)
        except subprocess.TimeoutExpired as late:
            # With the nodes, which would run on.
            os.killpg(running.pid, signal.SIGKILL)
            output, _ = running.communicate()
            raise WrongError(f"`{commands.strip()}` ran for more than {LONGEST_RUN_S} s:\n{output}") from late
        if (running.returncode != 0) != may_fail:
            raise WrongError(f"`{commands.strip()}` ended with {running.returncode}:\n{output}")
        lines = output.splitlines()
        printed = [found[1].rstrip() for found in map(PRINTED.match, lines) if found]
        self._printed, self._all = printed or lines, output

    def _change(self, file: Path, diff: str) -> None:
        lines = diff.splitlines(keepends=True)
        if unsigned := [line for line in lines if line[0] not in " -+"]:
            raise WrongError(f"a line of a change begins with a blank, - or +: {unsigned[0]}")
        old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        if file.read_text().count(old) != 1:
            raise WrongError(f"these lines don't stand in {file.name}, or more than once:\n{old}")
        file.write_text(file.read_text().replace(old, new))

    def _find(self, lines: str) -> None:
        for line in lines.splitlines():
            if not line.strip() or line.strip() not in self._all:
                raise WrongError(f"`{line}` isn't among what was printed:\n{self._all}")

    def _compare(self, file: Path, lines: str) -> None:
        if f"\n{lines}" not in f"\n{file.read_text()}":
            raise WrongError(f"these lines don't stand so in {file.name}:\n{lines}")


def by_node(lines: Sequence[str]) -> dict[str, list[str]]:
    said: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        said[line.partition(": ")[0]].append(line)
    return said


def run(chapter: str, *, is_writing: bool) -> None:
    """Raises WrongError."""
    path = COURSE / chapter / CHINESE
    text = path.read_text()
    found = blocks(text)
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(chapter, Path(folder))
        for block, following in zip(found, [*found[1:], None], strict=True):
            try:
                printed = reader.read(block, following)
            except WrongError as wrong:
                raise WrongError(f"{path}:{block.line}: {wrong}") from wrong
            if printed is None:
                continue
            is_so = by_node(printed) == by_node(block.body.splitlines())
            shown = block.body if is_so else "".join(f"{line}\n" for line in printed)
            if is_writing:
                for language in (path, path.with_name(ENGLISH)):
                    write(language, found.index(block), shown)
            elif not is_so:
                raise WrongError(f"{path}:{block.line}: what was printed is\n{shown}")


def write(path: Path, number: int, body: str) -> None:
    """Puts it into that block of a text, counted from 0."""
    text = path.read_text()
    block = list(FENCE.finditer(text))[number]
    path.write_text(text[: block.start(3)] + body + text[block.end(3) :])


# Reading


def check_text(path: Path) -> None:
    """Links, file names and make's targets. Raises WrongError."""
    text = FENCE.sub("", path.read_text())
    places = [path.parent, path.parent / "solution", COURSE, COURSE.parent]
    if path.parent == COURSE:
        places += COURSE.glob("ch*")
    for link in LINK.findall(text):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text())):
            raise WrongError(f"{path}: the link {link} leads nowhere")
    for code in CODE.findall(text):
        for name in FILE.findall(code):
            if not any((place / name).exists() for place in places):
                raise WrongError(f"{path}: there is no file {name}")
        for name in TARGET.findall(code):
            if f"\n{name}:" not in (COURSE.parent / "Makefile").read_text():
                raise WrongError(f"{path}: there is no `make {name}`")


def _anchors(text: str) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def check_languages(chapter: Path) -> None:
    """Raises WrongError if the two texts differ in more than their language."""
    chinese, english = (list(_structure((chapter / name).read_text())) for name in (CHINESE, ENGLISH))
    for number, (one, other) in enumerate(zip(chinese, english, strict=False)):
        if one != other:
            raise WrongError(f"{chapter}: part {number} is {one!r} in Chinese, {other!r} in English")
    if len(chinese) != len(english):
        raise WrongError(f"{chapter}: {len(chinese)} parts in Chinese, {len(english)} in English")


def _structure(text: str) -> Iterator[str]:
    """Headings, paragraphs, items and rows with the files that they link to; blocks as they are."""
    if "```" in FENCE.sub("", text):
        raise WrongError("three backquotes that neither begin nor end a block, or something unknown behind them")
    bodies = iter(FENCE.finditer(text))
    for paragraph in re.split(r"\n{2,}", FENCE.sub("```", text)):
        for line in paragraph.splitlines() if paragraph[:2] in ("- ", "| ", "1.") else [paragraph]:
            kind = re.match(r"#+ |- |\d\. |\||```|", line)
            assert kind
            linked = [link.partition("#")[0].replace(ENGLISH, CHINESE) for link in LINK.findall(line)]
            yield next(bodies)[0] if kind[0] == "```" else " ".join([kind[0], *linked])
    if next(bodies, None):
        raise WrongError("a block without an empty line before it")


def chapters() -> list[str]:
    return sorted(path.parent.name for path in COURSE.glob(f"ch*/{CHINESE}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("chapters", nargs="*", default=chapters())
    parser.add_argument("--write", action="store_true", help="put what was printed into the texts")
    given = parser.parse_args()
    try:
        for chapter in given.chapters:
            run(chapter, is_writing=given.write)
            for language in (CHINESE, ENGLISH):
                check_text(COURSE / chapter / language)
            check_languages(COURSE / chapter)
            print(f"{chapter}: all is as its text says")
    except WrongError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
