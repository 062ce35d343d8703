"""The one exception users meet: a sentence that says what is wrong and what to do."""


class EdgewiseError(ValueError):
    """Bad input. The command line prints its message as one line and exits with code 2."""


class UnsupportedArchitecture(EdgewiseError):
    """An analysis does not work on this architecture, while others, such as circuits of heads, may."""


MAX_LENGTH = 400
"""Of what is quoted of an error; some repeat all of their input."""


def first_line(error: BaseException) -> str:
    """The gist of somebody else's error, for the end of a sentence of ours."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0])


def shorten(text: str, length: int = MAX_LENGTH) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= length else f"{text[:length]} ..."
