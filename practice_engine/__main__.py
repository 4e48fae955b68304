"""`python -m practice_engine`."""

import sys

from practice_engine.cli import main

sys.exit(main())
