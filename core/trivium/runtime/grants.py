"""Permissions as the configuration says them, of users, roles, and clients without credentials; and
quotas.
"""

from __future__ import annotations

from collections.abc import Callable

from trivium.common.events import Events
from trivium.common.quotas import LISTENER, USER, VHOST, Quotas
from trivium.config import EVERYTHING, Config
from trivium.security.limits import UserLimits
from trivium.security.permissions import (
    AclFile,
    Grants,
    Permissions,
    grants_of,
    read_acl_file,
)
from trivium.security.users import GUEST


def configure_permissions(permissions: Permissions, config: Config) -> None:
    """Set what `config`, which has checked itself, grants."""
    auth = config.auth
    file = read_acl_file(auth.acl_file) if auth.acl_file else AclFile()
    permissions.logs_denials = auth.log_denials
    permissions.set_common(file.common)
    granted = auth.anonymous_permissions
    if auth.acl_file and granted == EVERYTHING:
        granted = {}
    anonymous = grants_of(granted, {}, [], [])
    anonymous.acl = file.anonymous
    permissions.set_anonymous(anonymous)
    if auth.guest and GUEST not in config.users:
        permissions.set_user(GUEST, grants_of(EVERYTHING, {}, [], []))
    for name, role in config.roles.items():
        granted_by_role = grants_of(role.permissions, role.topic_permissions, list(role.acl), [])
        permissions.set_role(name, granted_by_role)
    for name, user in config.users.items():
        permissions.set_user(
            name,
            grants_of(user.permissions, user.topic_permissions, list(user.acl), list(user.roles)),
        )
    for name, lines in file.users.items():
        # The file may name users who are known elsewhere.
        found = permissions.user(name) or Grants()
        found.acl += lines
        permissions.set_user(name, found)


def configure_quotas(
    quotas: Quotas, config: Config, events: Events, may_be: Callable[[str], bool]
) -> UserLimits:
    """Set the quotas of `config`, which has checked itself; beside them users have others."""
    quotas.set_defaults(USER, config.limits.user)
    quotas.set_defaults(VHOST, config.limits.vhost)
    # All clients without credentials are one user, without a name.
    quotas.set_limits(USER, "", config.auth.anonymous_limits)
    for listener in config.all_listeners():
        quotas.set_limits(LISTENER, listener.name, listener.limits)
    limits = {name: user.limits for name, user in config.users.items()}
    return UserLimits(quotas, limits, events, may_be)
