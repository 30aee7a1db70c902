"""`python -m cflower`, where the command is not on the path."""

from cflower.cli import main

main()
