"""What a request may say: the fields of the OpenAI API, which of them this server knows, and a few more.

A field that is unknown is refused, as OpenAI does. A field that would change the text in a way this server cannot is
refused unless it asks for nothing; a field that changes nothing about the text is taken and not looked at.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_MESSAGES = 4096

Stop = Annotated[StrictStr, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Token = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Ignored = Any


class Part(BaseModel):
    """A part of a message; only text is read."""

    model_config = ConfigDict(strict=True, extra="ignore")
    type: StrictStr
    text: StrictStr | None = None


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | list[Part]


class StreamOptions(BaseModel):
    """How a stream is sent."""

    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class Extension(BaseModel):
    """What only this server knows.

    Attributes:
        trace: Tell for every token where it came from, and what the controller decided.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    trace: bool = False


class Common(BaseModel):
    """What chat and text completions share. Sampling fields: see ``runtime.core.Sampling``."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: StrictStr
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Count | None = None
    n: Literal[1] | None = None
    # Not of the OpenAI API, but common.
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    specpilot: Extension | None = None
    # Would change the text: refused unless they ask for nothing.
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    # Change nothing about the text.
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None


class ChatRequest(Common):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Ignored = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Ignored = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None
    web_search_options: Any = None


class CompletionRequest(Common):
    """Body of ``POST /v1/completions``."""

    prompt: StrictStr | list[StrictStr] | list[Token] | list[list[Token]]
    best_of: Literal[1] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
