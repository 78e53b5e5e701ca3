"""The HTTP API that tools for RabbitMQ know: its paths, names and answers.

Each module has the endpoints of some things, as data.
"""

from __future__ import annotations

from typing import Final

from trivium.management.compatible import general, vhosts
from trivium.management.endpoints import Endpoints

#: All of them.
ENDPOINTS: Final = Endpoints([*general.ENDPOINTS, *vhosts.ENDPOINTS])
