"""What a benchmark asks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from runtime.errors import UserError


class Prompt(NamedTuple):
    """A user's message and what it is about."""

    domain: str
    text: str


PROMPTS = (
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number, with a docstring and a test."),
    Prompt("story", "Tell a short story about a lighthouse keeper who finds a letter in a bottle."),
    Prompt("math", "A train travels 180 km in 2.5 hours. What is its average speed? Show every step."),
    Prompt("legal", "Draft a confidentiality clause for a contract between a designer and a client."),
    Prompt("medical", "Explain what a blood pressure reading of 140 over 90 means and what to do about it."),
    Prompt("chat", "I slept badly and have a long day ahead. How do I get through it?"),
    Prompt("code", "Write an SQL query that lists the ten customers with the largest total of orders last year."),
    Prompt("facts", "Explain how a refrigerator works to a ten-year-old."),
    Prompt("list", "List ten European capitals with their countries, one a line."),
    Prompt("rewrite", "Rewrite this more politely: Send me the report today, I have been waiting for a week."),
    Prompt("math", "Solve the equation 3x + 7 = 2x + 19 and check the answer."),
    Prompt("summary", "Summarise in three sentences why leaves change their colour in autumn."),
)
"""Twelve messages over ten domains, in an order that keeps changing the topic."""


def read_prompts(file: Path | None) -> tuple[Prompt, ...]:
    """The prompts of a file, one a line, blank lines left out; without a file the built-in ones.

    Raises:
        UserError: If the file cannot be read or holds no prompt.
    """
    if file is None:
        return PROMPTS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompts {file} cannot be read ({error}): expected a text file, one prompt a line") from None
    prompts = tuple(Prompt("", line.strip()) for line in lines if line.strip())
    if not prompts:
        raise UserError(f"--prompts {file} holds no prompt: expected one a line")
    return prompts
