"""`python -m edgewise`."""

from edgewise.cli.main import main

if __name__ == "__main__":
    main()
