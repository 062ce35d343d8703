"""The one exception users meet: a sentence that says what is wrong and what to do."""


class EdgewiseError(ValueError):
    """Bad input. The command line prints its message as one line and exits with code 2."""


class UnsupportedArchitecture(EdgewiseError):
    """An analysis does not work on this architecture, while others, such as circuits of heads, may."""


MAX_LENGTH = 400
"""Of what is quoted of an error; some repeat all of their input."""


def first_line(error: BaseException) -> str:
    """The gist of somebody else's error, for the end of a sentence of ours."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= MAX_LENGTH else f"{line[:MAX_LENGTH]} ..."
