"""Draws a screen once a second on a terminal, until the user or the job ends it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from holdfast.blocks import Escaped

_REDRAW_S = 1.0
_QUIT = b"qQ\x03"

Draw = Callable[[int, int, bool], "list[Text] | None"]


def show(console: Console, draw: Draw) -> list[Text]:
    """Show a screen until the user presses q or Ctrl-C, or `draw` returns None.

    The screen is drawn again at once when the terminal changes its size. What was on the terminal before comes back at
    the end.

    Args:
        console: on a terminal.
        draw: returns the lines for a width, a height, and whether the terminal shows characters outside of ASCII.

    Returns:
        The last lines.
    """
    is_unicode = console.encoding.startswith("utf")
    lines: list[Text] = []
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with _Keys() as keys, contextlib.suppress(KeyboardInterrupt), live:
        while True:
            width, height = console.size
            drawn = draw(width, height, is_unicode)
            if drawn is None:
                break
            lines = drawn
            live.update(Escaped(Group(*lines)), refresh=True)
            if keys.quits(_REDRAW_S):
                break
    return lines


class _Keys:
    """Waits for a key, a change of the terminal's size, or a time."""

    def __enter__(self) -> _Keys:
        self._exit = contextlib.ExitStack()
        self._resized, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._exit.callback(os.close, self._resized)
        self._exit.callback(os.close, wakes)

        def resized(signum: int, frame: FrameType | None) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(wakes, b"\0")

        former = signal.signal(signal.SIGWINCH, resized)
        self._exit.callback(signal.signal, signal.SIGWINCH, former)
        self._stdin = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        if self._stdin is not None:
            self._exit.enter_context(_without_echo(self._stdin))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def quits(self, timeout_s: float) -> bool:
        """Whether the user has pressed q. Returns at once when the size has changed."""
        watched = [self._resized] if self._stdin is None else [self._resized, self._stdin]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._resized in ready:
            os.read(self._resized, 4096)
        if self._stdin in ready:
            pressed = os.read(self._stdin, 64)
            return not pressed or any(key in _QUIT for key in pressed)
        return False


@contextlib.contextmanager
def _without_echo(terminal: int) -> Iterator[None]:
    """Keys come one by one and are not shown."""
    import termios
    import tty

    former = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, former)
