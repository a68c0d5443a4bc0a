"""What goes wrong, as RFC 9457 (Problem Details for HTTP APIs) has it told."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web


class Problem(Exception):
    """A request that is not answered with 200.

    Args:
        status: HTTP's, from 400 on.
        detail: What is wrong with this request, and what would be right.
        headers: Of the answer, e.g. ``Retry-After``.
        members: Further members of the JSON object, e.g. ``errors``.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers, self.members = dict(headers or {}), members

    def response(self) -> web.Response:
        """Return it as an answer; ``about:blank`` means that the status says what kind it is."""
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return web.Response(
            text=json.dumps(body, ensure_ascii=False),
            status=self.status,
            headers=self.headers,
            content_type="application/problem+json",
        )


def busy(detail: str, seconds: int = 1) -> Problem:
    """Say that it is worth trying again."""
    return Problem(503, detail, {"Retry-After": str(seconds)})
