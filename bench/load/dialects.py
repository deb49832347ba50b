"""How to ask for a stream, and what its events mean, in SGLang's own API and in OpenAI's.

Counts are the server's wherever it gives them: `meta_info.completion_tokens`, or `usage`, which is asked for with every
chunk (`continuous_usage_stats`, which SGLang and vLLM have).
"""

import re
from typing import Any, Protocol

import msgspec

from bench.load.prompts import Prompt
from bench.load.records import Trace
from bench.load.spec import Api

DONE = b"[DONE]"
_COUNT_KEY = b'"completion_tokens":'
_COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
# Neither can occur inside a JSON string, where the quotes would be escaped.
_GOES_ON = b'"finish_reason":null'


class Dialect(Protocol):
    """One API."""

    path: str

    def body(self, prompt: Prompt, output_len: int, ignore_eos: bool) -> bytes:
        """The request as JSON."""
        ...

    def take(self, trace: Trace, event: bytes, now: float) -> None:
        """Write what an event says, which arrived at `now`, into the trace.

        Raises:
            msgspec.DecodeError: it is not JSON of the expected shape.
        """
        ...


def dialect(api: Api, model: str = "") -> Dialect:
    """The dialect of an API. OpenAI's name the model in every request."""
    return Native() if api == "native" else OpenAi(model, chat=api == "openai-chat")


class _Reason(msgspec.Struct):
    type: str = ""
    message: str | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Reason | str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _NativeEvent(msgspec.Struct):
    meta_info: _Meta | None = None
    text: str | None = None
    error: Any = None


class Native:
    """`POST /generate` of SGLang with `stream`: counts and texts are cumulative."""

    path = "/generate"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_NativeEvent).decode

    def body(self, prompt: Prompt, output_len: int, ignore_eos: bool) -> bytes:
        """Token ids go as `input_ids`, text as `text`."""
        sampling = {"max_new_tokens": output_len, "temperature": 0.0, "ignore_eos": ignore_eos}
        what = "text" if isinstance(prompt, str) else "input_ids"
        return msgspec.json.encode({what: prompt, "sampling_params": sampling, "stream": True})

    def take(self, trace: Trace, event: bytes, now: float) -> None:
        """Most events are not decoded: the last count in them is found by its key, which stands behind the text."""
        if trace.prompt is not None and _GOES_ON in event:
            found = _COUNT.match(event, event.rfind(_COUNT_KEY)) if _COUNT_KEY in event else None
            if found:
                trace.count(int(found[1]), now)
                return
        if event == DONE:
            trace.done = True
            return
        self._take_slowly(trace, self._decode(event), now)

    def _take_slowly(self, trace: Trace, event: _NativeEvent, now: float) -> None:
        if event.error is not None:
            trace.error = error_words(event.error)
            return
        meta = event.meta_info or _Meta()
        if meta.prompt_tokens is not None:
            trace.prompt, trace.cached = meta.prompt_tokens, meta.cached_tokens
        if meta.completion_tokens is not None:
            trace.count(meta.completion_tokens, now)
        elif event.text:
            trace.chunk(now)
        reason = meta.finish_reason
        if isinstance(reason, _Reason):
            trace.finish = reason.type
            if reason.type == "abort":
                trace.error = f"aborted: {reason.message or 'no reason given'}"
        else:
            trace.finish = reason


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _OpenAiEvent(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class OpenAi:
    """`POST /v1/completions` or `/v1/chat/completions`."""

    def __init__(self, model: str, chat: bool) -> None:
        self.path = "/v1/chat/completions" if chat else "/v1/completions"
        self._model, self._chat = model, chat
        self._decode = msgspec.json.Decoder(_OpenAiEvent).decode

    def body(self, prompt: Prompt, output_len: int, ignore_eos: bool) -> bytes:
        """Prompts as token ids are an extension of completions that SGLang and vLLM share."""
        asked: dict[str, Any] = {
            "model": self._model,
            "messages" if self._chat else "prompt": prompt,
            "max_tokens": output_len,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if ignore_eos:
            asked["ignore_eos"] = True
        return msgspec.json.encode(asked)

    def take(self, trace: Trace, event: bytes, now: float) -> None:
        """The decoder only builds what is needed, so that each event can be decoded."""
        if event == DONE:
            trace.done = True
            return
        said = self._decode(event)
        if said.error is not None:
            trace.error = error_words(said.error)
            return
        text = _has_text(said.choices[0]) if said.choices else False
        if said.choices and said.choices[0].finish_reason:
            trace.finish = said.choices[0].finish_reason
        if said.usage is not None and said.usage.completion_tokens is not None:
            self._usage(trace, said.usage, said.usage.completion_tokens, now, text)
        elif text:
            trace.chunk(now)

    def _usage(self, trace: Trace, usage: _Usage, tokens: int, now: float, text: bool) -> None:
        trace.prompt = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            trace.cached = usage.prompt_tokens_details.cached_tokens
        if trace.chunked:
            trace.count(tokens, now)
            return
        trace.total = tokens
        if text:
            trace.chunk(now)


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


def error_words(said: Any) -> str:
    """The server's own words, which it wraps in several ways; one line."""
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return " ".join(str(said).split())[:300]
