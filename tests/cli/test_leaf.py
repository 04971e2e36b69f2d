"""`astraflow bus --leaf` and `--leaf-listen`: what is wrong is one sentence, before anything starts."""

from pathlib import Path

import pytest

from tests.cli.toyrun import finished

LEAF = ("bus", "--leaf", "nats://127.0.0.1:1", "--region", "eu")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*LEAF,), "a leaf needs the hub's token"),
        (("bus", "--leaf", "nats://127.0.0.1:1", "--token-file", "token"), "--region local is the hub's"),
        (("bus", "--leaf", "http://hub", "--region", "eu", "--token-file", "token"), "not like nats://HOST:7422"),
        ((*LEAF, "--token-file", "nowhere"), "nowhere can't be read"),
        (
            ("bus", "--secure", "hub", "--run", "demo", "--leaf-listen", "127.0.0.1:7422"),
            "--leaf-listen needs --folder",
        ),
        (("bus",), "give one of --secure DIR, --folder DIR and --leaf URL"),
    ],
    ids=["no-token", "no-region", "bad-url", "no-file", "secured", "nothing"],
)
async def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "token").write_text("secret")

    code, output = await finished(tmp_path, *arguments)

    assert code == 2, output
    assert says in output
    assert len(output.strip().splitlines()) == 1
