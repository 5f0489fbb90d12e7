"""Each chapter of the course, run as its text says; and its text, in both languages."""

from __future__ import annotations

import pytest
from check_course import CHINESE, COURSE, ENGLISH, chapters, check_languages, check_text, run


@pytest.mark.parametrize("chapter", chapters())
def test_a_chapter_runs_and_prints_what_its_text_says(chapter: str) -> None:
    run(chapter, is_writing=False)


@pytest.mark.parametrize("chapter", [".", *chapters()])
def test_a_text_names_only_what_is_there_in_both_languages(chapter: str) -> None:
    for language in (CHINESE, ENGLISH):
        check_text(COURSE / chapter / language)
    check_languages(COURSE / chapter)
