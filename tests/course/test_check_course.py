"""The checker of the course finds what isn't so."""

from __future__ import annotations

from pathlib import Path

import check_course
import pytest
from check_course import CHINESE, ENGLISH, WrongError, check_languages, check_text, run

HELLO = 'print("hello")\n'
TEXT = """# Hello

Run `hello.py`:

```python hello.py
print("hello")
```

```sh
python hello.py
```

```text
hello
```
"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a chapter in which all is well."""
    monkeypatch.setattr(check_course, "COURSE", tmp_path / "course")
    chapter = tmp_path / "course/ch01-hello"
    chapter.mkdir(parents=True)
    (tmp_path / "Makefile").write_text("run:\n")
    (chapter / "hello.py").write_text(HELLO)
    rewrite(chapter, "", "")
    return chapter


def rewrite(chapter: Path, old: str, new: str, languages: tuple[str, ...] = (CHINESE, ENGLISH)) -> None:
    for language in languages:
        (chapter / language).write_text(TEXT.replace(old, new, 1) if old else TEXT)


def check(chapter: Path) -> None:
    run(chapter.name, is_writing=False)
    check_text(chapter / CHINESE)
    check_text(chapter / ENGLISH)
    check_languages(chapter)


def test_a_chapter_in_which_all_is_well_passes(course: Path) -> None:
    check(course)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('print("hello")', 'print("good day")', "don't stand so in hello.py"),
        ("```text\nhello", "```text\ngood day", "what was printed is"),
        ("```text\nhello\n", "```text\nhello\nhello\n", "what was printed is"),
        ("python hello.py\n```", "python hello.py; exit 3\n```", "ended with 3"),
        ("```text\nhello", "```text among\ngood day", "isn't among what was printed"),
        ("```text\nhello", "```text error\nhello", "ended with 0"),
        ("```sh", '```diff hello.py\n-print("no")\n+print("yes")\n```\n\n```sh', "don't stand in hello.py"),
        ("sh\npython hello.py", "sh\npython hello.py | false | cat", "ended with 1"),
        ("```text\nhello", "```text among\n\nhello", "isn't among what was printed"),
        ("```sh", "```diff hello.py\nprint(1)\n```\n\n```sh", "begins with a blank"),
        ("Run `hello.py`:\n\n", "Run `hello.py`:\n", "without an empty line"),
        ("Run `hello.py`", "Run `good-day.py`", "there is no file good-day.py"),
        ("Run `hello.py`", "Run [it](good-day.py)", "leads nowhere"),
        ("Run `hello.py`", "Run [it](#good-day)", "leads nowhere"),
        ("Run `hello.py`", "Run `make hello`", "there is no `make hello`"),
    ],
)
def test_what_is_not_so_is_found(course: Path, old: str, new: str, why: str) -> None:
    rewrite(course, old, new)
    with pytest.raises(WrongError, match=why):
        check(course)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Hello", "## Hello"),
        ("Run `hello.py`:\n", "Run `hello.py`:\n\nAnd again.\n"),
        ("python hello.py", "python  hello.py"),
        ("Run `hello.py`", "Run [it](hello.py)"),
    ],
)
def test_languages_that_differ_in_more_than_words_are_found(course: Path, old: str, new: str) -> None:
    rewrite(course, old, new, (ENGLISH,))
    with pytest.raises(WrongError):
        check(course)


def test_a_change_that_a_reader_makes_is_made_until_it_is_taken_back(course: Path) -> None:
    changed = '```diff hello.py\n-print("hello")\n+print("good day")\n```\n\n```sh\npython hello.py\n```\n\n'
    changed += "```text\ngood day\n```\n\n```sh\ngit restore .\n```\n\n```sh"
    rewrite(course, "```sh", changed)
    check(course)
    assert (course / "hello.py").read_text() == HELLO


def test_what_was_printed_is_put_into_both_texts(course: Path) -> None:
    rewrite(course, "```text\nhello", "```text\n?")
    run(course.name, is_writing=True)
    check(course)
    assert (course / ENGLISH).read_text() == TEXT


def test_of_two_nodes_either_may_print_first() -> None:
    assert check_course.by_node(["a: 1", "b: 1", "a: 2"]) == check_course.by_node(["a: 1", "a: 2", "b: 1"])
    assert check_course.by_node(["a: 1", "a: 2"]) != check_course.by_node(["a: 2", "a: 1"])
