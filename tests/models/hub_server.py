"""A Hugging Face hub of one model and one dataset, as far as downloads go."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(models: Mapping[str, Mapping[str, bytes]], datasets: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Its address. Args: files by path, by repository."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            for prefix, repositories in (("models", models), ("datasets", datasets)):
                for name, files in repositories.items():
                    start = f"/{name}/resolve/" if prefix == "models" else f"/{prefix}/{name}/resolve/"
                    if path.startswith(f"/api/{prefix}/{name}/tree/"):
                        tree = [{"type": "file", "path": p, "size": len(d), "oid": _tag(d)} for p, d in files.items()]
                        return self._answer(json.dumps(tree).encode())
                    if path.startswith(f"/api/{prefix}/{name}"):
                        about = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": p} for p in files]}
                        return self._answer(json.dumps(about).encode())
                    if path.startswith(start) and (data := files.get(path[len(start) :].partition("/")[2])) is not None:
                        return self._answer(data, "application/octet-stream")
                    if path.startswith(start):
                        return self._answer(b"", code=404, error="EntryNotFound")
            return self._answer(b"", code=404, error="RepoNotFound")

        def _answer(self, data: bytes, kind: str = "application/json", *, code: int = 200, error: str = "") -> None:
            self.send_response(code)
            headers = {"Content-Type": kind, "Content-Length": str(len(data)), "ETag": f'"{_tag(data)}"'}
            headers |= {"X-Repo-Commit": COMMIT} | ({"X-Error-Code": error} if error else {})
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _tag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
