"""``python -m project`` is the ``lightning`` command."""

import sys

from project.cli import main

sys.exit(main())
