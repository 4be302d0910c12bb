"""`python -m cluster`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said before an import can fail on an older one
    sys.exit(f"cluster: Python 3.11 or newer is needed, this is {sys.version.split()[0]}: run with a newer python3")

from cluster.cli import main

sys.exit(main())
