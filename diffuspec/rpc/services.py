"""The full names of the services, as used in calls and health checks."""

from __future__ import annotations

from diffuspec.v1 import (
    coordinator_pb2,
    draft_service_pb2,
    drafter_pb2,
    path_scorer_pb2,
    verifier_pb2,
)

DRAFTER_SERVICE = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
PATH_SCORER_SERVICE = path_scorer_pb2.DESCRIPTOR.services_by_name["PathScorerService"].full_name
DRAFT_SERVICE = draft_service_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name
COORDINATOR_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"].full_name
VERIFIER_SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
HEALTH_SERVICE = "grpc.health.v1.Health"

TRACEPARENT_KEY = "traceparent"  # metadata of a call: W3C trace context
