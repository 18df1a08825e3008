"""``python -m podwright``."""

from podwright.cli import main

raise SystemExit(main())
