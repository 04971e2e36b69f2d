"""Write the golden bytes: `.venv/bin/python -m tests.messages.make_golden`, after a field was appended.

What was released stays beside the new file as <type>.<n>.msgpack, and must keep decoding.
"""

from pathlib import Path

import msgpack

from astraflow.messages import MESSAGE_TYPES, encode
from tests.messages.examples import example_of

GOLDEN = Path(__file__).with_name("golden")


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in MESSAGE_TYPES:
        path = GOLDEN / f"{name}.msgpack"
        data = encode(example_of(name), id=f"golden/{name}", run="demo", producer="golden", trace="00-trace-01")
        if path.exists():
            old = path.read_bytes()
            if msgpack.unpackb(old)["body"] == msgpack.unpackb(data)["body"]:
                continue
            released = len(list(GOLDEN.glob(f"{name}.*.msgpack"))) + 1
            (GOLDEN / f"{name}.{released}.msgpack").write_bytes(old)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
