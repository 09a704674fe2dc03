"""``python -m paw_train.cli``."""

from paw_train.cli.program import main

main()
