"""First lines of docstrings, errors, pages and commit subjects are plain sentences."""

from __future__ import annotations

import pytest

from tests.support import words


def test_sources_and_pages_have_plain_sentences() -> None:
    assert list(words.complaints()) == []


@pytest.mark.parametrize(
    "text",
    [
        *("One that fails is left out.", "the files, and those of a savepoint", "the others are dropped"),
        *("Nobody reads the file.", "There is no such job.", "A query without figures changes no total."),
        *("It puts rows out.", "Lets go of the lock.", "a line that is wrapped: the names and those\nof the files"),
    ],
)
def test_a_pronoun_a_negated_subject_and_a_synonym_are_found(text: str) -> None:
    assert list(words.phrases(text))


@pytest.mark.parametrize(
    "text", ["One of the drivers that fail is left out.", "The job is no longer there.", "the other file"]
)
def test_a_noun_is_left_alone(text: str) -> None:
    assert list(words.phrases(text)) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""A module with a first line of thirteen words, which is one too many."""', 1),
        ('\n\ndef rows():\n    """The rows of a file."""', 4),
        ('\n\ndef rows():\n    """Returns rows of a file, which is left as it was.\n    They are sorted."""', 4),
        ('raise ValueError(\n    f"{name} is read by nobody"\n)', 2),
        ('class Fault(Exception):\n    advice: ClassVar[str] = "Stop those that run."', 2),
        ('class Fault(Exception):\n    advice = "Stop those that run."', 2),
    ],
)
def test_a_docstring_an_error_and_an_advice_are_found_with_their_line(source: str, line: int) -> None:
    assert [at for at, _ in words.module(source)][:1] == [line]


@pytest.mark.parametrize(
    "source",
    [
        '"""Rows of a file."""\n\n\ndef rows():\n    """Returns the rows of a file.\n\n    They are sorted.\n    """',
        'class File:\n    """A file of rows."""\n\n    @property\n    def rows(self):\n        """The rows."""',
        'raise ValueError("one file per subtask")',
    ],
)
def test_plain_docstrings_and_errors_are_left_alone(source: str) -> None:
    assert list(words.module(source)) == []


@pytest.mark.parametrize("line", ["Count shared files once in an operator's size", "Address a replica by its name"])
def test_an_imperative_is_a_good_subject(line: str) -> None:
    assert list(words.subject(line)) == []


@pytest.mark.parametrize(
    "line",
    [
        *("New pictures of every page", "A line of a test is shorter", "Charts say the values of now"),
        *("Name the phases; show the lag", "Count files once.", "count files once", f"Count {'files ' * 12}once"),
        *("Counted files once", "Drop what nobody reads"),
    ],
)
def test_other_subjects_are_found(line: str) -> None:
    assert list(words.subject(line))
