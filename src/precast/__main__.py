"""`python -m precast` is `precast`."""

from precast.cli import main

main()
