"""A Hugging Face hub of a few models and datasets, as far as downloads go."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(models: Mapping[str, Mapping[str, bytes]], datasets: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Its address. Args: files by path, by repository; `org/name@revision` for one that isn't main."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        commit = COMMIT  # of the repository that answers

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            for prefix, repositories in (("models", models), ("datasets", datasets)):
                for key, files in repositories.items():
                    name, _, revision = key.partition("@")
                    self.commit = hashlib.sha1(revision.encode()).hexdigest() if revision else COMMIT
                    within = f"/{name}" if prefix == "models" else f"/{prefix}/{name}"
                    for at in (quote(revision or "main", safe=""), self.commit):
                        if path == f"/api/{prefix}/{name}/tree/{at}":
                            tree = [
                                {"type": "file", "path": p, "size": len(d), "oid": _tag(d)} for p, d in files.items()
                            ]
                            return self._answer(json.dumps(tree).encode())
                        if path == f"/api/{prefix}/{name}/revision/{at}":
                            about = {"id": name, "sha": self.commit, "siblings": [{"rfilename": p} for p in files]}
                            return self._answer(json.dumps(about).encode())
                        start = f"{within}/resolve/{at}/"
                        if path.startswith(start) and (data := files.get(path[len(start) :])) is not None:
                            return self._answer(data, "application/octet-stream")
                        if path.startswith(start):
                            return self._answer(b"", code=404, error="EntryNotFound")
                names = {key.partition("@")[0] for key in repositories}
                if any(path.startswith((f"/{prefix}/{name}/", f"/api/{prefix}/{name}/")) for name in names):
                    return self._answer(b"", code=404, error="RevisionNotFound")
            return self._answer(b"", code=404, error="RepoNotFound")

        def _answer(self, data: bytes, kind: str = "application/json", *, code: int = 200, error: str = "") -> None:
            self.send_response(code)
            headers = {"Content-Type": kind, "Content-Length": str(len(data)), "ETag": f'"{_tag(data)}"'}
            headers |= {"X-Repo-Commit": self.commit} | ({"X-Error-Code": error} if error else {})
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
