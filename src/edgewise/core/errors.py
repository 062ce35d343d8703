"""The one exception users meet: a sentence that says what is wrong and what to do."""


class EdgewiseError(ValueError):
    """Bad input. The command line prints its message as one line and exits with code 2."""


def first_line(error: BaseException) -> str:
    """The gist of somebody else's error, for the end of a sentence of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
