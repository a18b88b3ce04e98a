"""A webhook on loopback, whose address holds a secret."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

CANARY = "s3cret-canary"


class Hook:
    """A webhook on loopback that answers with the codes of ``answers``, then 200; 0 = it says nothing for a second."""

    def __init__(self, *answers: int) -> None:
        self.got: list[dict[str, Any]] = []
        left = list(answers)
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = left.pop(0) if left else 200
                if code == 0:
                    time.sleep(1)
                    return
                if code == 200:
                    got.append(document)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token={CANARY}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
