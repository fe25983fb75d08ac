"""A service that says that it is ready, and ends at the first request: ends_soon.py --port N."""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        os._exit(3)


HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
