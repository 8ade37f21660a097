"""Requests made up from the OpenAPI document, right and wrong ones: what comes back is what the document says."""

from __future__ import annotations

import pytest
import requests
import schemathesis
from bad_days_parts import bad_day
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.openapi.document import openapi_document
from trivium.doors.http.routes import business_routes, management_routes

EXAMPLES = 10  # of each operation, beside those that schemathesis makes of every boundary
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

document = openapi_document(business_routes() + management_routes(own_port=False), ServerConfig())
config = schemathesis.Config.from_dict({"generation": {"deterministic": True, "max-examples": EXAMPLES}})
schema = schemathesis.openapi.from_dict(document, config=config)


@pytest.fixture(scope="module")
def server():
    with bad_day() as running, requests.Session() as session:
        yield running.url, session


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_requests_made_up_from_the_document(case, server):
    url, session = server
    case.call_and_validate(base_url=url, session=session, checks=CHECKS)
