"""The gate that every call passes, whichever protocol it came by.

``Access`` is the one place that decides whether a principal may do something in a
namespace; ``Gate`` asks it, then the rate limiter, and only then the use case, and tells the
metrics what came of it. The edges hold a Gate and nothing behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from memsvc.domain.errors import MemsvcError, PermissionDenied, Unauthenticated
from memsvc.domain.types import (
    Caller,
    ForgetAnswer,
    ForgetRequest,
    HealthAnswer,
    Namespace,
    NewMemory,
    QueryAnswer,
    QueryRequest,
    WriteAnswer,
    WriteRequest,
)
from memsvc.service.api import AdminApi, Control, MemoryApi
from memsvc.service.limits import RateLimiter, check_namespace
from memsvc.service.metrics import Metrics

MAX_TOKEN_BYTES = 512
"""Longer ones are refused unread; a token of ours has some 50."""


class Principal(Protocol):
    """The holder of a token, as the token store describes it."""

    @property
    def name(self) -> str:
        """Name of the token, for the audit and the log."""

    def allows(
        self,
        right: str,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> bool:
        """Whether a right holds for everything below a target; no target = the node."""


class Tokens(Protocol):
    """Where tokens are looked up."""

    def authenticate(self, token: str, now_ms: int) -> Principal | None:
        """The holder of a token that is known and in its time."""


class _Everyone:
    name = ""

    def allows(
        self,
        right: str,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> bool:
        return True


EVERYONE: Principal = _Everyone()
"""Who calls when no tokens are asked for (auth.mode none)."""


class Access:
    """Decides who a caller is and what they may do.

    ``tokens`` None means that no tokens are asked for. Whether namespaces confine a token
    (auth.namespace_scope) is up to the token store. ``now_ms`` gives UTC milliseconds.
    """

    def __init__(
        self,
        tokens: Tokens | None,
        *,
        header: str = "X-Memory-Token",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self.header = header

    @property
    def open(self) -> bool:
        """Whether no tokens are asked for."""
        return self._tokens is None

    def identify(self, token: str | None) -> Principal | None:
        """The caller, or None without a valid token."""
        if self._tokens is None:
            return EVERYONE
        if not token or len(token) > MAX_TOKEN_BYTES:
            return None
        return self._tokens.authenticate(token, self._now_ms())

    def authenticate(self, token: str | None) -> Principal:
        """The caller. Raises Unauthenticated (TOKEN_MISSING, TOKEN_INVALID)."""
        principal = self.identify(token)
        if principal is not None:
            return principal
        if not token:
            raise Unauthenticated(
                "a token is needed",
                reason="TOKEN_MISSING",
                hint=f"Send it as {self.header} (gRPC metadata: {self.header.lower()}).",
            )
        raise Unauthenticated(
            "the token is unknown or past its time",
            reason="TOKEN_INVALID",
            hint="Ask whoever runs the server for a new one: memsvc token add.",
        )

    def allow(
        self, principal: Principal, right: str, tenant: str = "", agent: str = "", session: str = ""
    ) -> None:
        """Raises PermissionDenied unless the right holds for all of the target.

        The message is the same for a namespace that exists and for one that does not.
        """
        if not principal.allows(right, tenant or None, agent or None, session or None):
            where = "this namespace" if tenant else "the whole node"
            raise PermissionDenied(
                f"the token does not give the right to {right} in {where}",
                hint="See the token's prefixes and rights: memsvc token list.",
                metadata={"right": right},
            )

    def caller(self, principal: Principal, namespace: Namespace) -> Caller:
        """The principal as the use cases see them."""
        tenant, agent = namespace.tenant, namespace.agent
        return Caller(
            actor=principal.name,
            may_review=principal.allows("review", tenant, agent),
            may_admin=principal.allows("admin", tenant, agent),
        )


class Gate:
    """The calls of a node for callers that must be checked first."""

    def __init__(
        self,
        api: MemoryApi,
        *,
        access: Access,
        limiter: RateLimiter,
        metrics: Metrics,
        admin: AdminApi | None = None,
    ) -> None:
        self._api = api
        self._admin = admin
        self._limiter = limiter
        self.access = access
        self.metrics = metrics

    def write(self, principal: Principal, request: WriteRequest, control: Control) -> WriteAnswer:
        """Raises MemsvcError; see MemoryApi.write."""
        namespace = request.namespace
        # Only new memories belong to the session of the request; the other items name
        # memories by id, of any session of the agent.
        within = all(isinstance(item, NewMemory) for item in request.items)
        session = namespace.session if within else ""
        caller = self._admit(principal, "write", namespace, session, control)
        answer = self._api.write(caller, request, control)
        self.metrics.wrote(request, answer)
        return answer

    def query(self, principal: Principal, request: QueryRequest, control: Control) -> QueryAnswer:
        """Raises MemsvcError; see MemoryApi.query. Needs the right for the whole agent,
        since a search spans its sessions."""
        caller = self._admit(principal, "read", request.namespace, "", control)
        answer = self._api.query(caller, request, control)
        self.metrics.queried(request, answer)
        return answer

    def forget(
        self, principal: Principal, request: ForgetRequest, control: Control
    ) -> ForgetAnswer:
        """Raises MemsvcError; see MemoryApi.forget. Needs the right for the whole agent."""
        caller = self._admit(principal, "forget", request.namespace, "", control)
        answer = self._api.forget(caller, request, control)
        self.metrics.forgot(request, answer)
        return answer

    def health(self) -> HealthAnswer:
        """Never raises. What of it a caller may see is decided by ``Access.identify``:
        without a principal only ready, role, degraded and version."""
        return self._api.health()

    def admin(self, principal: Principal, tenant: str = "", agent: str = "") -> AdminApi | None:
        """The administration, for those with the admin right there ("" = the whole node).
        None when this node has none."""
        self.access.allow(principal, "admin", tenant, agent)
        return self._admin

    def failed(self, error: MemsvcError | None) -> None:
        """Counts an error that is about to be told to a caller; None = a bug."""
        if error is None:
            self.metrics.incident()
        else:
            self.metrics.error(error)

    def _admit(
        self,
        principal: Principal,
        right: str,
        namespace: Namespace,
        session: str,
        control: Control,
    ) -> Caller:
        # First, and free: a call that waited for a thread past its deadline must not start.
        control.check()
        check_namespace(namespace)
        self.access.allow(principal, right, namespace.tenant, namespace.agent, session)
        self._limiter.take(namespace.tenant, namespace.agent)
        return self.access.caller(principal, namespace)
