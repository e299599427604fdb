"""From a checked body to a request for the session, or a refusal."""

from __future__ import annotations

from typing import Any

from runtime.core import Request, Sampling
from runtime.server.faults import ApiError, unsupported, wrong
from runtime.server.schemas import ChatRequest, CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16
"""``max_tokens`` of a text completion that names none, as OpenAI has it. A chat may go on to the end of its context."""

NOTHING: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
}
"""Fields that would change the text, and the values that ask for nothing."""


def refuse_unless_served(body: ChatRequest | CompletionRequest, model: str) -> None:
    """Make sure that this server can do what is asked.

    Raises:
        ApiError: 404 for another model, 400 for what is not supported.
    """
    if body.model != model:
        raise no_such_model(body.model)
    for name, harmless in NOTHING.items():
        value = getattr(body, name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in _with_floats(harmless)):
            raise unsupported(name, "leave it out")
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options", "only allowed when 'stream' is true")


def no_such_model(name: str) -> ApiError:
    """The model asked for is not the one that is served."""
    shown = name if len(name) <= 100 else f"{name[:100]}…"
    return ApiError(404, f"The model {shown!r} does not exist here: see /v1/models", "model_not_found", "model")


def sampling_of(body: ChatRequest | CompletionRequest) -> Sampling:
    """How tokens are chosen; what is not said is as OpenAI has it: temperature 1, top_p 1."""
    return Sampling(
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=body.seed,
    )


def request_of(
    body: ChatRequest | CompletionRequest,
    name: str,
    prompt_ids: list[int],
    context_tokens: int,
    most_tokens: int,
    eos_ids: frozenset[int],
) -> Request:
    """The request as the session reads it.

    Args:
        body: What was sent.
        name: Of the request.
        prompt_ids: Its prompt.
        context_tokens: Longest sequence of prompt and text.
        most_tokens: Most tokens that a request may ask for.
        eos_ids: Tokens that end the text.

    Raises:
        ApiError: If it does not fit the context.
    """
    if not prompt_ids:
        raise wrong(_field(body), "the prompt is empty: send some text")
    new_tokens = _new_tokens(body, len(prompt_ids), context_tokens, most_tokens)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Request(name, tuple(prompt_ids), new_tokens, eos_ids, sampling=sampling_of(body), stop=stop)


def _new_tokens(
    body: ChatRequest | CompletionRequest, prompt_tokens: int, context_tokens: int, most_tokens: int
) -> int:
    """Most tokens of the text: what was asked for, if there is room for it, or else what is usual."""
    room, asked = context_tokens - prompt_tokens, _asked(body)
    if asked is not None and asked > most_tokens:
        raise wrong("max_tokens", f"{asked} is too large: this server writes at most {most_tokens} tokens a request")
    if room < (asked or 1):
        raise _too_long(_field(body), prompt_tokens, asked or 1, context_tokens)
    if asked is not None:
        return asked
    usual = most_tokens if isinstance(body, ChatRequest) else DEFAULT_COMPLETION_TOKENS
    return min(usual, most_tokens, room)


def _too_long(field: str, prompt_tokens: int, new_tokens: int, context_tokens: int) -> ApiError:
    """In the words of OpenAI's own server, which clients look for."""
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested "
        f"{prompt_tokens + new_tokens} tokens ({prompt_tokens} in the {field}, {new_tokens} in the "
        "completion). Please reduce their length."
    )
    return ApiError(400, message, "context_length_exceeded", field)


def _field(body: ChatRequest | CompletionRequest) -> str:
    return "messages" if isinstance(body, ChatRequest) else "prompt"


def _asked(body: ChatRequest | CompletionRequest) -> int | None:
    newer = body.max_completion_tokens if isinstance(body, ChatRequest) else None
    if newer is not None and body.max_tokens not in (None, newer):
        raise wrong("max_tokens", "differs from max_completion_tokens: send one of them")
    return newer if newer is not None else body.max_tokens


def _with_floats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A harmless 0 may be written 0.0."""
    return (*values, *(float(value) for value in values if type(value) is int))
