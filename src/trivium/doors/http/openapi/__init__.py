"""The OpenAPI document that describes every route, at `/openapi.json`."""

from __future__ import annotations

from trivium.doors.http.openapi.document import routes

__all__ = ["routes"]
