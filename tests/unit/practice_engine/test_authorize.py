"""The credentials dialogue."""

from pathlib import Path

from practice_engine.cli import authorize


def test_stored_credentials_are_announced(tmp_path: Path) -> None:
    """With a credentials file the engine says so in the real engine's words and goes on."""
    file = tmp_path / "credentials"
    said: list[str] = []
    file.write_text("secret")
    assert authorize(file, say=said.append)
    assert said == ["Stored credentials found.", "Authorization granted."]


def test_without_credentials_the_terminal_is_asked_five_times(tmp_path: Path) -> None:
    """Without the file, or with a folder or an empty file in its place, it asks for name and password and gives up."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for place in ("missing", "folder", "empty"):
        said: list[str] = []
        asked: list[str] = []

        def answer(prompt: str, asked: list[str] = asked) -> str:
            asked.append(prompt)
            return "x"

        assert not authorize(tmp_path / place, ask=answer, ask_secret=answer, say=said.append)
        assert asked == ["Username: ", "Password: "] * 5
        assert [line for line in said if "retry" in line][-1].endswith("(retry 5/5)")
