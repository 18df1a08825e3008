"""``python3 -m podwright_bootstrap``: boot this node."""

import sys

from podwright_bootstrap.boot import main

sys.exit(main())
