"""The common form of errors, whichever server they come from: problem details (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class ProblemError(Exception):
    """Ends a request, or one of its calls, with problem details.

    Args:
        status: HTTP status; the title is its name.
        more: further members. ``exception``: what an environment raised, if a wrong argument is
            to blame; ``retry_after``: seconds after which the same may succeed; ``errors``: each
            mistake of a malformed request, with the JSON pointer to it.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more

    def content(self, instance: str | None = None) -> bytes:
        """The problem details as JSON in ASCII: what a request held need not be valid Unicode."""
        content = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        if instance is not None:
            content["instance"] = instance
        return json.dumps(content).encode()

    def response(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        """The answer to a request of that path."""
        given = dict(headers or {})
        if "retry_after" in self.more:
            given["Retry-After"] = str(self.more["retry_after"])
        return Response(self.content(path), self.status, given, media_type=MEDIA_TYPE)
