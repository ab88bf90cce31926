"""`python -m postroom`: the command line, where the command `postroom` is not on the path."""

from postroom.cli import main

if __name__ == "__main__":
    main()
