"""`python -m reprior`: the command line, where its script is not on the path."""

from reprior.cli import main

main()
