"""`python -m partwise` is `partwise`."""

import sys

from partwise.cli import main

sys.exit(main())
