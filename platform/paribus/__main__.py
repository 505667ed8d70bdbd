"""python -m paribus."""

from paribus.cli import main

main()
