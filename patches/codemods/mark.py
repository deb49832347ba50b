"""The mark that every inserted or changed line carries."""

import re

MARK = re.compile(rb"\b_hs_")
