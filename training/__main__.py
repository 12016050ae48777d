"""`python -m training`."""

import sys

from training.cli import main
from training.machine.memory import keep_pages

keep_pages()
sys.exit(main())
