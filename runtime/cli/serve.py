"""``specpilot serve``: a bundle over HTTP, as the OpenAI API speaks it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from runtime.bundle import read_bundle
from runtime.cli.common import (
    add_kv_options,
    add_model_options,
    bundle_option,
    controller_options,
    dtype_option,
    opener,
    refuse_unless_kv_options,
)
from runtime.errors import UserError
from runtime.importing import importing

if TYPE_CHECKING:
    from runtime.server.config import ServerConfig

KEY_VARIABLE = "SPECPILOT_API_KEY"
EXTRA = ("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn")
"""What the extra ``serve`` brings."""

EXAMPLES = f"""examples:
  specpilot serve --bundle outputs/latest/bundle
  specpilot serve --bundle outputs/latest/bundle --port 9000 --kv-folder /var/cache/specpilot
  {KEY_VARIABLE}=secret specpilot serve --bundle outputs/latest/bundle --host 0.0.0.0

  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d \\
    '{{"model": "smollm2", "temperature": 0, "messages": [{{"role": "user", "content": "Name a river."}}]}}'

Ctrl-C or SIGTERM lets the request in hand finish (--grace); a second one ends at once.
exit codes: 0 ended by a signal, all done; 2 a mistake in the call or its files; 130 ended at once"""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "serve",
        help="answer over HTTP, as the OpenAI API",
        description="Serve a bundle over HTTP: the OpenAI API under /v1, a page at /, /health and /metrics. "
        "Needs the extra 'serve'.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bundle_option(parser)
    controller_options(parser)
    parser.add_argument("--model-id", metavar="NAME", help="name that requests give as 'model' (default: the zoo's)")
    add_model_options(parser)
    dtype_option(parser)
    _add_network_options(parser.add_argument_group("who may call"))
    _add_limit_options(parser.add_argument_group("limits"))
    add_kv_options(parser.add_argument_group("stored KV"))
    parser.set_defaults(run=run)


def _add_network_options(group: Any) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    group.add_argument("--port", type=int, default=8000, help="port to listen on; 0 = any free one (default: 8000)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"ask for this key; may be given several times, keys then take turns. Others on this machine can see it: "
        f"better set {KEY_VARIABLE} (several with commas between)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="let web pages of this origin call; may be given several times (default: none)",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer to this host name too, when listening on this machine only and without a key",
    )


def _add_limit_options(group: Any) -> None:
    for flag, kind, default, text in (
        ("--queue", int, 16, "requests that may wait; more are answered with 429"),
        ("--timeout", float, 600, "seconds that a request may take, waiting included"),
        ("--grace", int, 30, "seconds that requests in hand may take at the end"),
        ("--max-tokens", int, 2048, "most tokens that a request may ask for"),
        ("--max-body", int, 1 << 20, "bytes that a request may have"),
        (
            "--keep-free-megabytes",
            int,
            256,
            "memory that stays free: drafts and KV give way; 0 = they do not",
        ),
    ):
        group.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} (default: {default})")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    refuse_unless_kv_options(options)
    bundle = read_bundle(options.bundle)
    config = server_config(options, options.model_id or bundle.zoo.name)
    try:
        with importing():
            from runtime.server.listening import serve  # here, because it is an extra, and the import takes seconds
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in EXTRA:
            raise
        raise UserError(
            f"serving needs the package '{missing.name}', which is not installed: pip install 'specpilot[serve]'"
        ) from None
    if not config.local and not config.api_keys:
        print(f"warning: anybody who reaches {config.host} may use this server: set {KEY_VARIABLE}", file=sys.stderr)
    info = {"bundle": options.bundle.name, "policy": bundle.policy_sha256}
    return serve(opener(options, bundle), config, info, lambda url: print(greeting(url, config), flush=True))


def server_config(options: argparse.Namespace, model: str) -> ServerConfig:
    """The options as the server reads them."""
    from runtime.server.config import ServerConfig

    keys = [*options.api_key, *(key for key in os.environ.get(KEY_VARIABLE, "").split(",") if key)]
    return ServerConfig(
        model=model,
        host=options.host,
        port=options.port,
        api_keys=tuple(key.strip() for key in keys),
        queue=options.queue,
        timeout_s=options.timeout,
        grace_s=options.grace,
        max_tokens=options.max_tokens,
        max_body_bytes=options.max_body,
        keep_free_bytes=options.keep_free_megabytes * 1_000_000,
        cors_origins=tuple(options.cors_origin),
        allowed_hosts=tuple(options.allow_host),
    )


def greeting(url: str, config: ServerConfig) -> str:
    """How to call the server."""
    key = " -H 'Authorization: Bearer KEY'" if config.api_keys else ""
    return f"""serving {config.model} at {url}
  page     {url}/
  OpenAI   base_url="{url}/v1", model="{config.model}"
  curl     curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
             -d '{{"model": "{config.model}", "temperature": 0, "messages": [{{"role": "user", "content": "Hi"}}]}}'"""
