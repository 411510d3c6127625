"""Secrets are masked in all the forms in which text may show them; other text stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.redaction import (
    SECRET_CHARACTERS_MIN,
    Mask,
    mask_known,
    masked,
    redact,
    redact_named,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "password=hunter2hunter2 done",
        'aws_secret_access_key: "hunter2hunter2"',
        "fs.s3a.secret.key=hunter2hunter2",
        "the value hunter2hunter2 itself",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    assert "hunter2" not in redact(text, {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2"})


@pytest.mark.parametrize(
    "line",
    [
        *(part * 30_000 for part in ("token", "bearer ", "password=", "key: ", 'secret"', "token ")),
        "".join(f"password=of-{number} " for number in range(30_000)),
    ],
    ids=lambda line: line[:10],
)
def test_a_long_line_takes_no_longer_than_many_short_ones(line: str) -> None:
    """A job chooses what it prints, and while a line is searched for secrets no request is answered."""
    began_s = time.process_time()
    redact(line, {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2"})
    redact_named("input", line)
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
@pytest.mark.parametrize(
    "before",
    [
        "authorization: bearer ",
        "secret=",
        "password: ",
        "passwd=",
        "db.password.value = ",
        'token":"',
        "access_key: '",
        "access.key=",
        "accessKey=",
        "credential-of-ours=",
    ],
)
def test_an_unknown_secret_is_masked_by_the_word_before_it(before: str, case: Callable[[str], str]) -> None:
    assert redact(f"{case(before)}hunter2/hunter2 done", {}) == f"{case(before)}***** done"


def test_other_text_stays() -> None:
    text = "batch 7 took 30 ms; region=eu-central-1"
    assert redact(text, {"AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": ""}) == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://app:hunter2%2Fx@db:5432/orders", "password authentication failed: 'hunter2/x'"),
        ("postgresql://app:hunter2%2Fx@db:5432/orders", "cannot parse hunter2%2Fx"),
        ("host=db user=app password=hunter2x", "connection with hunter2x refused"),
        ("two\nlines of hunter2", f"KeyError: {'two' + chr(10) + 'lines of hunter2'!r}"),
        ('hunter2"quoted', '{"key": "hunter2\\"quoted"}'),
        ("hunter2x\n", "read 'hunter2x' from a file"),
    ],
)
def test_a_password_inside_of_a_secret_and_a_quoted_secret_are_masked(value: str, shown: str) -> None:
    assert "hunter2" not in mask_known(shown, {"KEYSCALE_JOB_SECRET_ORDERS": value})


@pytest.mark.parametrize(
    "name", ["PGPASSWORD", "api_key", "SMTP_PASSWD", "KEYSCALE_ATTEMPT_TOKEN", "AWS_ACCESS_KEY_ID"]
)
def test_a_variable_is_secret_by_its_name(name: str) -> None:
    assert mask_known("it is hunter2x", {name: "hunter2x"}) == "it is *****"


@pytest.mark.parametrize("name", ["KEYSCALE_WORK_DIR", "PATH", "MONKEYS", "KEYBOARD"])
def test_a_path_of_a_traceback_is_no_secret(name: str) -> None:
    assert mask_known('File "/srv/job.py"', {name: "/srv/job.py"}) == 'File "/srv/job.py"'


def test_source_lines_with_the_word_password_stay_where_only_known_secrets_are_masked() -> None:
    assert mask_known("    password = prompt(user)", {}) == "    password = prompt(user)"


def test_of_two_secrets_of_which_one_begins_with_the_other_nothing_is_left() -> None:
    assert mask_known("abcdef123", {"A_TOKEN": "abcdef", "B_TOKEN": "abcdef123"}) == "*****"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("api_key", "anything at all", "*****"),
        ("parallelism", "4", "4"),
        ("database", "postgresql://app:hunter2%2Fx@db:5432/orders", "postgresql://app:*****@db:5432/orders"),
        ("database", "host=db password=hunter2x", "host=db password=*****"),
        ("header", "Bearer hunter2hunter2", "Bearer *****"),
        ("database", "host=db password=abcdef passwd=abcdefgh", "host=db password=***** passwd=*****"),
    ],
)
def test_a_parameter_is_masked_by_its_name_or_in_part_by_its_form(name: str, value: str, shown: str) -> None:
    assert redact_named(name, value) == shown


@pytest.mark.parametrize("shorter", ["hunter2", "longer"])
def test_a_password_that_holds_another_password_is_masked_to_its_last_character(shorter: str) -> None:
    shown = redact_named("input", f"postgresql://me:hunter2.longer@db/orders?token={shorter}")
    assert shown == "postgresql://me:*****@db/orders?token=*****"


def test_a_quoted_secret_is_masked_to_its_last_character() -> None:
    shown = "two\nlines of hunter2"
    assert mask_known(f"KeyError: {shown!r}", {"A_TOKEN": shown}) == "KeyError: '*****'"


def test_a_part_of_a_text_masks_what_the_whole_masks_and_the_pieces_of_secrets_that_its_ends_cut() -> None:
    mask = Mask({"DATABASE_SECRET": "hunter-and-gatherer", "PORT_TOKEN": "short"})
    text = "to hunter-and-gatherer, short of: password=abcdefgh, from hunter-and-gatherer"
    whole = {at for begin, end in mask.spans_of_part(text) for at in range(begin, end)}
    assert masked(text, mask.spans_of_part(text)) == "to *****, short of: password=*****, from *****"
    secret = "hunter-and-gatherer"  # noqa: S105 - of this test
    for begin in range(len(secret) + 1):
        for end in range(begin, len(secret) + 1):
            before, after = text.index(secret) + begin, len(text) - len(secret) + end
            part = text[before:after]
            found = {before + at for first, last in mask.spans_of_part(part) for at in range(first, last)}
            known = {at for at in whole if before <= at < after}
            head, tail = range(before, text.index(secret) + len(secret)), range(after - end, after)
            cut = {at for piece in (head, tail) if 0 < len(piece) < SECRET_CHARACTERS_MIN for at in piece}
            assert found == known - cut, part
    assert mask.unfinished("a hunter-and") == len("hunter-and")
    assert mask.unfinished("a hunter and") == 0
    assert mask.unfinished(f"a {secret}") == 0


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, None, "a ***** c *****"),
        (0, 2, "a "),
        (0, 3, "a *****"),
        (3, 8, " c "),
        (5, 8, " c "),
        (6, 9, "c *****"),
        (5, 5, ""),
    ],
)
def test_a_mask_is_in_the_part_in_which_its_span_begins(begin: int, end: int | None, expected: str) -> None:
    assert masked("a bbb c ddd", [(2, 5), (8, 11)], begin, end) == expected
