"""What a user did wrong, and how an exception is told in one line."""


class UsageError(SystemExit):
    """A command or config that is wrong: one line for the user, exit status 2.

    A SystemExit, so that it ends a sweep, and passes Hydra's own handlers.
    """

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = " ".join(message.split())

    def __str__(self) -> str:
        return self.message


def first_line(error: BaseException) -> str:
    """The exception's kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
