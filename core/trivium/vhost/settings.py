"""What is set about a virtual host: its row in the table ``vhosts``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trivium.common.quotas import VHOST, check_limits
from trivium.common.values import pack, unpack
from trivium.errors import PreconditionFailed
from trivium.queues.arguments import CLASSIC, QUEUE_TYPE, QUORUM, STREAM, queue_type

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.vhost.virtual_host import VirtualHost

#: Longest name, in UTF-8: AMQP has short strings.
MAX_NAME_BYTES: Final = 255
MAX_DESCRIPTION_BYTES: Final = 1024
MAX_TAGS: Final = 32
MAX_TAG_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class VirtualHostSettings:
    """What commands set about a virtual host. Raises PreconditionFailed for what cannot be set."""

    description: str = ""
    tags: tuple[str, ...] = ()
    #: of queues that are declared without a type; "" is classic
    default_queue_type: str = ""
    #: its quotas, beside those that every virtual host has
    limits: Mapping[str, int] = field(default_factory=dict)
    #: whether it is on its way out: nobody may enter it
    is_being_deleted: bool = False

    def __post_init__(self) -> None:
        if len(self.description.encode()) > MAX_DESCRIPTION_BYTES:
            raise PreconditionFailed(f"a description has at most {MAX_DESCRIPTION_BYTES} bytes")
        if len(self.tags) > MAX_TAGS:
            raise PreconditionFailed(f"a virtual host has at most {MAX_TAGS} tags")
        for tag in self.tags:
            if not 0 < len(tag.encode()) <= MAX_TAG_BYTES or not tag.isprintable():
                raise PreconditionFailed(f"a tag has 1 to {MAX_TAG_BYTES} printable bytes")
        check_limits(VHOST, self.limits)
        if self.default_queue_type not in ("", CLASSIC, QUORUM, STREAM):
            raise PreconditionFailed(
                f"'{self.default_queue_type}' is no type of queues: classic, quorum, stream"
            )

    def described(self) -> dict[str, object]:
        """What is set, for those who ask."""
        return {
            "description": self.description,
            "tags": list(self.tags),
            "default_queue_type": self.default_queue_type or CLASSIC,
            "limits": dict(self.limits),
        }

    def row(self) -> bytes:
        """The row: a map of what is set, empty where nothing is."""
        values: dict[str, Any] = {}
        if self.description:
            values["description"] = self.description
        if self.tags:
            values["tags"] = list(self.tags)
        if self.default_queue_type:
            values["default_queue_type"] = self.default_queue_type
        if self.limits:
            values["limits"] = dict(self.limits)
        if self.is_being_deleted:
            values["deleting"] = True
        return pack(values) if values else b""


def settings_of_row(row: bytes) -> VirtualHostSettings:
    """What a row says."""
    if not row:
        return VirtualHostSettings()
    values = unpack(row)
    return VirtualHostSettings(
        description=values.get("description", ""),
        tags=tuple(values.get("tags", ())),
        default_queue_type=values.get("default_queue_type", ""),
        limits=values.get("limits", {}),
        is_being_deleted=values.get("deleting", False),
    )


def check_vhost_name(name: str) -> None:
    """Raise PreconditionFailed unless a virtual host may be called so. ``*`` is for permissions
    that hold in every one."""
    if not 0 < len(name.encode(errors="surrogatepass")) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"a virtual host's name has 1 to {MAX_NAME_BYTES} bytes")
    if not name.isprintable() or name == "*":
        raise PreconditionFailed("a virtual host's name has printable characters, and is not *")


def with_default_type(
    vhost: VirtualHost,
    name: str,
    arguments: dict[str, HeaderValue],
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> dict[str, HeaderValue]:
    """The arguments of a queue's declaration, with the virtual host's default type where that has
    one and they name none.

    What exists keeps its type. A queue that goes with its clients, or that the broker names, is a
    classic one: the other types cannot be so.
    """
    kind = vhost.settings.default_queue_type
    if not kind or QUEUE_TYPE in arguments:
        return arguments
    known = vhost.queues.get(name)
    if known is not None:
        kind = queue_type(known.arguments)
    elif name in vhost.streams:
        kind = STREAM
    elif not name or not durable or exclusive or auto_delete:
        return arguments
    return arguments if kind == CLASSIC else {**arguments, QUEUE_TYPE: kind}
