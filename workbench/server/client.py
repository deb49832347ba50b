"""A client for the HTTP interface of SGLang, as 0.5.15.post1 and 0.5.23 speak it. Safe for threads, no retries."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from workbench.errors import RequestRefused, ServerError, TimedOut, UsageError

TIMEOUT_S = 60.0


class AnsweredWithError(RequestRefused):
    """The server answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, next_step: str = "") -> None:
        super().__init__(message, next_step)
        self.status = status


class SglangClient:
    """Talks to one server. Proxy variables are not obeyed: the servers are this machine's own.

    Args:
        url: Such as ``http://127.0.0.1:30017``.
        transport: Replaces the network, for tests.
        timeout: Seconds that a request may take.
        api_key: Sent as a bearer token.

    Every method raises ServerError when no server can be reached, RequestRefused when it answers with an
    error, with the server's own words, and TimedOut when it does not answer in time.
    """

    def __init__(
        self,
        url: str,
        transport: httpx.BaseTransport | None = None,
        timeout: float = TIMEOUT_S,
        api_key: str | None = None,
    ) -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url,
                transport=transport,
                timeout=timeout,
                trust_env=False,
                headers=headers,
                limits=httpx.Limits(max_connections=None),  # whoever sends bounds what is in flight
            )
        except httpx.InvalidURL as error:
            raise UsageError(f"{url!r} is not a URL: {error}", "such as http://127.0.0.1:30017") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def model_info(self) -> dict[str, Any]:
        """What the server says of its model: `model_path`, `tokenizer_path`, `model_type` and more."""
        info: dict[str, Any] = self._json("GET", "/model_info")
        return info

    def server_info(self) -> dict[str, Any]:
        """The server's arguments as resolved, its version, and the limits of its scheduler."""
        info: dict[str, Any] = self._json("GET", "/server_info")
        return info

    def health(self) -> int:
        """The status of `/health`: 200 when the scheduler answered. It takes the server a second or more."""
        return self._send("GET", "/health").status_code

    def ping(self) -> None:
        """Return if the server answers at all, be it to ask for an API key."""
        self._send("GET", "/model_info")

    def max_input_len(self) -> int | None:
        """The longest prompt in tokens that the server takes, from its context and cache; None if untold.

        The server refuses a prompt of that many tokens or more (`validate_input_length` in its scheduler).
        """
        limit = self.server_info().get("max_req_input_len")
        return limit - 1 if isinstance(limit, int) else None

    def tokenize(self, text: str) -> tuple[list[int], int]:
        """Token ids of `text` as a prompt, and the tokenizer's longest sequence, not the server's context.

        A tokenizer that states no longest sequence makes 0.5.15.post1 answer with an error.
        """
        answer = self._json("POST", "/tokenize", {"prompt": text})
        return answer["tokens"], answer["max_model_len"]

    def tokenize_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, rendered by the model's chat template up to the assistant's turn.

        Args:
            messages: Such as ``[{"role": "user", "content": "Hi"}]``.
        """
        ids: list[int] = self._json("POST", "/tokenize", {"messages": list(messages)})["tokens"]
        return ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself; part of a character comes as U+FFFD."""
        if not ids:
            return []
        asked = {"tokens": [[token] for token in ids], "skip_special_tokens": False}
        texts: list[str] = self._json("POST", "/detokenize", asked)["text"]
        return texts

    def generate(
        self,
        input_ids: Sequence[int] | Sequence[Sequence[int]],
        rid: str | list[str],
        max_new_tokens: int = 1,
        logprobs: bool = False,
        *,
        logprob_start: int | None = None,
        top_logprobs: int = 0,
        temperature: float = 0.0,
        timeout: float | None = None,
    ) -> Any:
        """Run a prompt, or a list of them at once.

        A token id outside the vocabulary is not refused by SGLang: on a CPU it ends the server.

        Args:
            input_ids: One prompt, or a list of prompts.
            rid: The request's id, or one for each prompt.
            max_new_tokens: Tokens to generate.
            logprobs: Ask for the log-probabilities of the generated tokens.
            logprob_start: Ask for those of the prompt's tokens too, from this position on.
            top_logprobs: Ask for the most probable tokens at each of these positions.
            temperature: 0 takes the most probable token.
            timeout: Seconds, instead of the client's own.

        Returns:
            The server's answer: `text`, `output_ids`, `meta_info`; a list of them for a list of prompts.
        """
        body: dict[str, Any] = {
            "input_ids": input_ids,
            "rid": rid,
            "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": temperature},
        }
        if logprobs or logprob_start is not None or top_logprobs:
            body["return_logprob"] = True
            body["logprob_start_len"] = -1 if logprob_start is None else logprob_start
            body["top_logprobs_num"] = top_logprobs
        return self._json("POST", "/generate", body, timeout)

    def _json(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> Any:
        response = self._send(method, path, body, timeout)
        if response.status_code >= 400:
            raise self._refusal(response)
        try:
            return response.json()
        except ValueError as error:
            raise ServerError(f"{self.url}{path} does not answer in JSON", "is it an SGLang server?") from error

    def _send(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> httpx.Response:
        wait = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        try:
            return self._http.request(method, path, json=body, timeout=wait)
        except httpx.ConnectError as error:
            raise ServerError(
                f"no server answers at {self.url}",
                "hsbench status lists the servers; hsbench serve --model PATH starts one",
            ) from error
        except httpx.TimeoutException as error:
            raise TimedOut(f"{self.url}{path} does not answer in time", "hsbench status; the server's log") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise UsageError(f"{self.url!r} is not a URL: {error}", "such as http://127.0.0.1:30017") from error
        except httpx.HTTPError as error:
            raise ServerError(
                f"{self.url} broke off the answer to {path}: {error}", "hsbench status; the server's log"
            ) from error

    def _refusal(self, response: httpx.Response) -> AnsweredWithError:
        path, status = response.request.url.path, response.status_code
        step = {
            401: "the server wants an API key",
            404: "is it an SGLang server, 0.5.15 or later?",
            503: "it is starting or stopping; hsbench status",
        }.get(status, "")
        return AnsweredWithError(status, f"the server refused {path} ({status}): {_words(response)}", step)


def _words(response: httpx.Response) -> str:
    """The server's own message, which it wraps in several ways."""
    try:
        said: Any = response.json()
    except ValueError:
        text = " ".join(response.text.split())
        return text[:200] if text and "<html" not in text.lower() else response.reason_phrase
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return str(said)[:500]
