"""The one shape of an error, whatever server it comes from: problem details (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, instance: str | None = None, **more: Any) -> dict[str, Any]:
    """The members of problem details.

    Args:
        status: of HTTP; the title is its name.
        detail: a sentence: what happened, and what to do.
        instance: path of the request.
        more: further members. ``exception``: what an environment raised, where a wrong argument is
            to blame; ``retry_after``: seconds after which the same may succeed; ``errors``: each
            mistake of a malformed request, with the JSON pointer to it.
    """
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }
    return content if instance is None else {**content, "instance": instance}


def problem_bytes(status: int, detail: str, instance: str | None = None, **more: Any) -> bytes:
    """Problem details as JSON in ASCII: what a request held need not be valid Unicode."""
    return json.dumps(problem(status, detail, instance, **more)).encode()


class ProblemError(Exception):
    """Ends a request, or one of its calls, with problem details.

    Args:
        status, detail, more: as for ``problem``.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more

    def content(self, instance: str | None = None) -> bytes:
        """The problem details as JSON."""
        return problem_bytes(self.status, self.detail, instance, **self.more)
