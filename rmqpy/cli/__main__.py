"""Run ``rmqpy`` as ``python -m rmqpy.cli``."""

import sys

from rmqpy.cli import main

sys.exit(main())
