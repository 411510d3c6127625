from __future__ import annotations

import sys

from api.serve import main

sys.exit(main())
