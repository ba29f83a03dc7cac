"""What a user did wrong."""


class UsageError(SystemExit):
    """A command or config that is wrong: one line for the user, exit status 2.

    A SystemExit, so that it ends a sweep, and passes Hydra's own handlers.
    """

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = " ".join(message.split())

    def __str__(self) -> str:
        return self.message
