"""`python -m noisescope` is the command `noisescope`."""

import sys

from noisescope.cli.main import main

sys.exit(main())
