"""Entry point of `python -m isosphere`."""

import sys

from isosphere.command import main

sys.exit(main())
