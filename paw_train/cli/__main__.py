"""``python -m paw_train.cli``."""

from paw_train.cli import main

main()
