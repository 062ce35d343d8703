"""The one exception users meet: a sentence that says what is wrong and what to do."""


class EdgewiseError(ValueError):
    """Bad input. The command line prints its message as one line and exits with code 2."""
