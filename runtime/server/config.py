"""How a server is run."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from runtime.errors import UserError

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServerConfig:
    """Everything a server needs to know beyond its models.

    Attributes:
        model: Name that requests must give.
        host: Address to listen on.
        port: Port to listen on; 0 = any free one.
        api_keys: Keys of which a request must carry one; none = no key is asked for.
        queue: Most requests that wait for the device; more are refused with 429.
        timeout_s: Longest time of a request, waiting included.
        grace_s: At shutdown, how long what was begun may take to finish.
        max_tokens: Most tokens that one request may ask for.
        max_body_bytes: Largest request body.
        keep_free_bytes: Memory of the machine that is to stay available; the budget gives way. 0 = it does not.
        body_timeout_s: Longest time that a client may take to send a request body.
        write_timeout_s: Longest time that a client may read nothing of a full connection.
        cors_origins: Web origins that may call from a browser; none = only the server's own page.
        allowed_hosts: Further names by which the server is called, for a reverse proxy; matters without a key only.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    queue: int = 16
    timeout_s: float = 600.0
    grace_s: int = 30
    max_tokens: int = 2048
    max_body_bytes: int = 1 << 20
    keep_free_bytes: int = 256_000_000
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("port", 0 <= self.port <= 65535, "from 0 to 65535"),
            ("queue", self.queue >= 1, "at least 1"),
            ("timeout", 0 < self.timeout_s <= 86_400, "above 0 and at most 86400 seconds"),
            ("grace", 0 <= self.grace_s <= 86_400, "from 0 to 86400 seconds"),
            ("max-tokens", self.max_tokens >= 1, "at least 1"),
            ("max-body", self.max_body_bytes >= 1024, "at least 1024 bytes"),
            ("keep-free-megabytes", self.keep_free_bytes >= 0, "at least 0"),
            ("api-key", all(key.strip() for key in self.api_keys), "some text"),
            ("model", bool(self.model.strip()), "some text"),
        ):
            if not fits:
                raise UserError(f"--{name} must be {expected}: change it")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str] | None:
        """Host names a request may be addressed to; None = any.

        A web page elsewhere can have its own name lead to 127.0.0.1 and so read from a local server that asks for no
        key (DNS rebinding); the name then stands in the ``Host`` header.
        """
        if self.api_keys or not self.local:
            return None
        return frozenset({*LOCAL_HOSTS, self.host, *self.allowed_hosts})
