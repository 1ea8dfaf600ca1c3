"""Follows an error to the errors that caused it."""

from __future__ import annotations


def errors_behind(error: BaseException | None) -> list[BaseException]:
    """Returns an error and the errors that caused it, beginning with the error itself."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors
