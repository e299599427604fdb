"""What a client is told when something is wrong, in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

BAD_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
NO_RETRY = {"x-should-retry": "false"}
"""Header by which OpenAI's clients know that asking again does not help."""


class ApiError(HTTPException):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: One sentence: what was wrong, what is expected.
        code: Machine-readable reason, as OpenAI names it where it has a name for it.
        param: Field of the request that is meant.
        kind: ``type`` of the error object.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        kind: str = BAD_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers) if headers else None)
        self.code, self.param, self.kind = code, param, kind

    def body(self) -> dict[str, Any]:
        """The error object."""
        error = {"message": self.detail, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status_code, headers=self.headers)


def unsupported(param: str, why: str) -> ApiError:
    """A field that this server cannot do what is asked with."""
    return ApiError(400, f"'{param}' is not supported by this server: {why}", "unsupported_parameter", param)


def wrong(param: str, message: str) -> ApiError:
    """A field with a value that cannot be."""
    return ApiError(400, f"{param}: {message}", "invalid_value", param)


def failed(error: Exception) -> ApiError:
    """A request that failed while it was served; the text says no more than the kind of failure."""
    reason = f"the request failed on this device ({type(error).__name__}); the server goes on, ask again"
    return ApiError(500, reason, "request_failed", kind=SERVER_ERROR)


def too_slow(timeout_s: float) -> ApiError:
    """A request that took longer than it may."""
    message = f"the request took longer than {timeout_s:g} s, waiting included: ask for fewer tokens, or try later"
    return ApiError(504, message, "timeout", kind=SERVER_ERROR, headers=NO_RETRY)


def closing() -> ApiError:
    """The server is about to end."""
    headers = {"Retry-After": "5"}
    return ApiError(503, "the server is shutting down", "shutting_down", kind=SERVER_ERROR, headers=headers)


def gone() -> ApiError:
    """The client went away; nobody reads this."""
    return ApiError(499, "the client closed the connection", "client_closed")


def busy(waiting: int, retry_s: int) -> ApiError:
    """The waiting room is full."""
    message = f"{waiting} requests are waiting already: try again in {retry_s} s"
    return ApiError(429, message, "rate_limit_exceeded", kind="requests", headers={"Retry-After": str(retry_s)})


async def answer_api_error(_: Request, error: Exception) -> JSONResponse:
    """Handler of ``ApiError`` and of what Starlette itself refuses (unknown path, wrong method)."""
    if isinstance(error, ApiError):
        return error.response()
    assert isinstance(error, HTTPException)
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    return ApiError(error.status_code, str(error.detail), code, headers=error.headers).response()


async def answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Handler of a body that does not fit its schema: names the first field that does not."""
    assert isinstance(error, RequestValidationError)
    first = _most_telling(error.errors())
    param = ".".join(str(part) for part in first["loc"][1:] if not _is_branch(part))
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {param}", None, param).response()
    if first["type"] == "missing":
        message = f"you must provide {param}" if param else "a JSON object is expected as the request body"
        return ApiError(400, message, "missing_required_parameter", param or None).response()
    return ApiError(400, f"{param or 'body'}: {first['msg']}", "invalid_type", param or None).response()


async def answer_crash(_: Request, error: Exception) -> JSONResponse:
    """Handler of everything nobody thought of; the server's log has the traceback."""
    return ApiError(500, "the server made a mistake", "internal_error", kind=SERVER_ERROR).response()


def _most_telling(errors: Sequence[Any]) -> Any:
    """Of a union every branch reports: the one that got furthest, and not because the type was another one."""
    return max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))


def _is_branch(part: Any) -> bool:
    """Whether a part of a location names the branch of a union rather than a field."""
    return isinstance(part, str) and (not part.isidentifier() or part in {"str", "int", "Stops"})
