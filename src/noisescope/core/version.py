"""The version of noisescope, for records that say who wrote them."""

from __future__ import annotations

VERSION = "0.1.0"
