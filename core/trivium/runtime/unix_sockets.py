"""Unix sockets: files that only this machine reaches, with an owner and permissions."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Final

from trivium.errors import TriviumError
from trivium.listen import ListenerConfig

#: What the kernel takes: 108 bytes with the zero at the end (unix(7)).
MOST_PATH_BYTES: Final = 107


def bind_unix(config: ListenerConfig) -> socket.socket:
    """The socket of a listener, whose file is its own. Raises TriviumError.

    A file that a broker has left behind is replaced. Nobody can connect before the socket listens,
    so that its owner and permissions are right by then.
    """
    path = config.path
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise TriviumError(
            f"{config.name} cannot listen on {config.address}: the path of a Unix socket has at"
            f" most {MOST_PATH_BYTES} bytes"
        )
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            bound.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_behind(path):
                raise
            Path(path).unlink()
            bound.bind(path)
        if config.owner:
            user, _, group = config.owner.partition(":")
            shutil.chown(path, _known(user), _known(group) if group else None)
        Path(path).chmod(config.permissions)
    except (OSError, LookupError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise TriviumError(f"{config.name} cannot listen on {config.address}: {reason}") from None
    return bound


def _known(name: str) -> str | int:
    return int(name) if name.isdecimal() else name


def _is_left_behind(path: str) -> bool:
    """Whether it is a socket that nobody listens on."""
    if not stat.S_ISSOCK(Path(path).stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        return attempt.connect_ex(path) == errno.ECONNREFUSED


def remove_socket(path: str, inode: int) -> None:
    """Remove the file of a socket, unless another one has its place."""
    try:
        if Path(path).stat().st_ino == inode:
            Path(path).unlink()
    except OSError:
        # It is gone, or its directory is.
        pass
