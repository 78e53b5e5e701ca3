"""The methods that both clients have, each of which makes one request.

A request is an operation, and the function that makes it says what the method takes, gives and
raises. So each signature is written once, and the clients cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from trivium_native.client import (
    arrow_operations,
    group_operations,
    operations,
    permission_operations,
    topology_operations,
    transaction,
    user_operations,
)
from trivium_native.client.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRunner:
    """A client whose methods are coroutines."""

    async def run(self, operation: Operation[T]) -> T:
        """Make a request and wait for its answer."""
        raise NotImplementedError


class SyncRunner:
    """A client whose methods block."""

    def run(self, operation: Operation[T]) -> T:
        """Make a request and wait for its answer."""
        raise NotImplementedError


class Method(Generic[P, T]):
    """A method that runs the operation that ``make`` makes of its arguments."""

    def __init__(self, make: Callable[P, Operation[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self.__name__ = make.__name__
        made = inspect.signature(make)
        result = str(made.return_annotation).removeprefix("Operation[").removesuffix("]")
        self._bound = made.replace(return_annotation=result)
        client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        self.__signature__ = self._bound.replace(parameters=[client, *made.parameters.values()])

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...

    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, client: SyncRunner, owner: type) -> Callable[P, T]: ...

    def __get__(self, client: AsyncRunner | SyncRunner | None, owner: type) -> Any:
        make = self._make
        if client is None:
            return self
        if isinstance(client, AsyncRunner):
            asynchronous = client

            async def method(*arguments: P.args, **named: P.kwargs) -> T:
                return await asynchronous.run(make(*arguments, **named))

            return self._described(method)
        blocking = client

        def blocking_method(*arguments: P.args, **named: P.kwargs) -> T:
            return blocking.run(make(*arguments, **named))

        return self._described(blocking_method)

    @overload
    def __call__(
        self, client: AsyncRunner, /, *arguments: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def __call__(self, client: SyncRunner, /, *arguments: P.args, **named: P.kwargs) -> T: ...

    def __call__(
        self, client: AsyncRunner | SyncRunner, /, *arguments: P.args, **named: P.kwargs
    ) -> Any:
        """As a function of the class."""
        return self.__get__(client, type(client))(*arguments, **named)

    def _described(self, method: Any) -> Any:
        """For who asks a method of a client what it is."""
        method.__name__ = self.__name__
        method.__doc__ = self.__doc__
        method.__signature__ = self._bound
        return method


class Operations:
    """The methods that make one request."""

    # Publishing and transactions
    open_producer = Method(operations.open_producer)
    delete_producer = Method(operations.delete_producer)
    stage = Method(operations.stage)
    discard_part = Method(operations.discard_part)
    commit_transaction = Method(transaction.commit_transaction)

    # Streams and groups
    metadata = Method(operations.metadata)
    fetch = Method(operations.fetch)
    fetch_arrow = Method(arrow_operations.fetch_arrow)
    offset_for_timestamp = Method(operations.offset_for_timestamp)
    commit = Method(group_operations.commit)
    committed = Method(group_operations.committed)
    groups = Method(group_operations.groups)
    describe_group = Method(group_operations.describe_group)
    join_exclusively = Method(group_operations.join_exclusively)
    check_membership = Method(group_operations.check_membership)
    leave = Method(group_operations.leave)

    # Topology
    declare_exchange = Method(topology_operations.declare_exchange)
    declare_queue = Method(topology_operations.declare_queue)
    declare_stream = Method(topology_operations.declare_stream)
    extend_stream = Method(topology_operations.extend_stream)
    delete = Method(topology_operations.delete)
    delete_stream = Method(topology_operations.delete_stream)
    bind = Method(topology_operations.bind)
    bind_queue = Method(topology_operations.bind_queue)
    bind_stream = Method(topology_operations.bind_stream)
    unbind = Method(topology_operations.unbind)
    purge = Method(topology_operations.purge)
    set_policy = Method(topology_operations.set_policy)
    delete_policy = Method(topology_operations.delete_policy)
    policies = Method(topology_operations.policies)

    # Permissions
    manage_permissions = Method(permission_operations.manage_permissions)

    # Users
    add_user = Method(user_operations.add_user)
    set_password = Method(user_operations.set_password)
    renew = Method(user_operations.renew)
    set_user_tags = Method(user_operations.set_user_tags)
    set_user_vhost = Method(user_operations.set_user_vhost)
    delete_user = Method(user_operations.delete_user)
    users = Method(user_operations.users)
    add_api_key = Method(user_operations.add_api_key)
    delete_api_key = Method(user_operations.delete_api_key)
    api_keys = Method(user_operations.api_keys)


class Within(AsyncRunner, Operations):
    """The requests of a client, each of which is given up after a time."""

    def __init__(
        self, run: Callable[[Operation[Any], float], Coroutine[Any, Any, Any]], timeout: float
    ) -> None:
        self._run = run
        self._timeout = timeout

    async def run(self, operation: Operation[T]) -> T:
        found: T = await self._run(operation, self._timeout)
        return found


class SyncWithin(SyncRunner, Operations):
    """The same of a client that blocks."""

    def __init__(self, run: Callable[[Operation[Any], float], Any], timeout: float) -> None:
        self._run = run
        self._timeout = timeout

    def run(self, operation: Operation[T]) -> T:
        found: T = self._run(operation, self._timeout)
        return found
