"""A picture of the server's page, with the real models: ``python -m benchmarks.page --bundle DIR --out FILE.png``.

Starts ``specpilot serve``, asks a question in a headless Chromium, and keeps what is on the screen when the answer is
complete. Prints what the OpenAI interface said of the same question, too.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from runtime.errors import UserError
from runtime.files import written_whole

QUESTION = "Write a Python function that returns the n-th Fibonacci number, and explain it."
WIDTH, HEIGHT = 1280, 800


def ask(url: str, model: str, tokens: int) -> dict[str, Any]:
    """The question over HTTP; returns the answer's usage."""
    body = {"model": model, "temperature": 0, "max_tokens": tokens, "messages": [{"role": "user", "content": QUESTION}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        usage: dict[str, Any] = json.load(answer)["usage"]
    return usage


def photograph(url: str, chromium: Path, tokens: int, out: Path) -> None:
    """Ask in the page and keep the picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, written_whole(out) as aside:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(120_000)
        page.goto(url)
        page.click("summary")
        page.fill("#tokens", str(tokens))
        page.click("summary")
        page.fill("#prompt", QUESTION)
        page.click("#send")
        page.wait_for_selector(".model .after")
        page.screenshot(path=str(aside), type="png")
        browser.close()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="folder of the bundle")
    parser.add_argument("--chromium", type=Path, default=Path("/usr/bin/chromium"), help="the browser")
    parser.add_argument("--tokens", type=int, default=120, help="most tokens of the answer (default: 120)")
    parser.add_argument("--out", type=Path, default=Path("docs/images/page.png"), help="the picture")
    options = parser.parse_args()
    command = [sys.executable, "-m", "runtime.cli", "serve", "--bundle", str(options.bundle), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            first = server.stdout.readline() if server.stdout else ""
            found = re.match(r"serving (\S+) at (\S+)", first)
            if found is None:
                raise UserError(f"the server did not start: {first or 'see above'}")
            model, url = found.groups()
            photograph(url, options.chromium, options.tokens, options.out)
            usage = ask(url, model, options.tokens)
            print(json.dumps(usage))
        except UserError as error:
            print(f"benchmarks.page: {error}", file=sys.stderr)
            return 2
        finally:
            server.send_signal(signal.SIGINT)
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
