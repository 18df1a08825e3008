"""The Cloud Control API for one type, AWS::SageMaker::Cluster.

https://docs.aws.amazon.com/cloudcontrolapi/latest/APIReference/Welcome.html
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import jsonpatch
import jsonpointer

from podwright_rehearsal.aws import clock, cluster_schema
from podwright_rehearsal.aws.aws_errors import AwsError, HandlerError
from podwright_rehearsal.aws.hyperpod import EmulatedCluster, EmulatedClusters
from podwright_rehearsal.aws.list_order import reordered


@dataclass
class RequestProgress:
    """One asynchronous request: IN_PROGRESS until ``done_at``, then FAILED if there is an ``error``, else SUCCESS."""

    token: str
    operation: str
    request: Mapping[str, Any]
    started_at: float
    done_at: float
    identifier: str | None
    error: HandlerError | None


class CloudControl:
    """The service. Not thread-safe: the server calls it under its lock.

    Args:
        clusters: the store.
        region: whose schema counts.
        transition_s: how long a request stays IN_PROGRESS.
        order_seed: of the order in which lists are read. Default: as they were written.
    """

    def __init__(
        self, *, clusters: EmulatedClusters, region: str, transition_s: float, order_seed: int | None = None
    ) -> None:
        self._order_seed = order_seed
        self._clusters = clusters
        self._region = region
        self._transition_s = transition_s
        self._progress: dict[str, RequestProgress] = {}
        self._token_by_client_token: dict[str, str] = {}
        self.denial = ""  # IAM's message, if the caller of the next operation lacks a permission of the handler.
        self.operations = {
            "CreateResource": self.create,
            "GetResource": self.get,
            "UpdateResource": self.update,
            "DeleteResource": self.delete,
            "ListResources": self.list,
            "GetResourceRequestStatus": self.status,
        }

    def create(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """CreateResource: the schema is checked at once, everything else by the handler."""
        self._check_type(request)
        return self._once("CREATE", request, lambda: self._clusters.create(self._desired_state(request)).arn)

    def get(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """GetResource: the model with its read-only properties."""
        self._check_type(request)
        return {"TypeName": cluster_schema.CLUSTER_TYPE, "ResourceDescription": self._description(self._find(request))}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateResource: a JSON patch (RFC 6902) on the model."""
        self._check_type(request)

        def handle() -> str:
            cluster = self._find_idle(request)
            self._clusters.update(cluster, self._patched(cluster.model, request))
            return cluster.arn

        return self._once("UPDATE", request, handle)

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """DeleteResource: a resource that does not exist is the handler's NotFound, as in AWS."""
        self._check_type(request)

        def handle() -> str:
            if self._clusters.find(request["Identifier"]) is None:
                raise HandlerError("NotFound", _not_found(request))
            cluster = self._find_idle(request)
            self._clusters.delete(cluster)
            return cluster.arn

        return self._once("DELETE", request, handle)

    def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """ListResources: all in one page."""
        self._check_type(request)
        descriptions = [self._description(cluster) for cluster in self._clusters.all()]
        return {"TypeName": cluster_schema.CLUSTER_TYPE, "ResourceDescriptions": descriptions}

    def status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """GetResourceRequestStatus."""
        token = request.get("RequestToken", "")
        if token not in self._progress:
            raise AwsError("RequestTokenNotFoundException", f"Request with token {token} was not found")
        return {"ProgressEvent": self._event(self._progress[token])}

    def _once(self, operation: str, request: Mapping[str, Any], handle: Callable[[], str]) -> dict[str, Any]:
        """Run a handler, unless this ClientToken has: then its progress is answered again."""
        client_token = request.get("ClientToken") or str(uuid.uuid4())
        if client_token in self._token_by_client_token:
            progress = self._progress[self._token_by_client_token[client_token]]
            if (progress.operation, progress.request) != (operation, request):
                raise AwsError(
                    "ClientTokenConflictException", f"ClientToken {client_token} was used by another request"
                )
            return {"ProgressEvent": self._event(progress)}
        identifier, failure = request.get("Identifier"), None
        try:
            self._check_caller()
            identifier = handle()
        except HandlerError as error:
            failure = error
        now = clock.now()
        progress = RequestProgress(
            token=str(uuid.uuid4()),
            operation=operation,
            request=request,
            started_at=now,
            done_at=now + self._transition_s,
            identifier=identifier,
            error=failure,
        )
        self._progress[progress.token] = progress
        self._token_by_client_token[client_token] = progress.token
        return {"ProgressEvent": self._event(progress)}

    def _check_caller(self) -> None:
        if self.denial:
            raise HandlerError("AccessDenied", self.denial)

    def _event(self, progress: RequestProgress) -> dict[str, Any]:
        is_done = clock.now() >= progress.done_at
        event: dict[str, Any] = {
            "TypeName": cluster_schema.CLUSTER_TYPE,
            "RequestToken": progress.token,
            "Operation": progress.operation,
            "OperationStatus": ("FAILED" if progress.error else "SUCCESS") if is_done else "IN_PROGRESS",
            "EventTime": progress.done_at if is_done else progress.started_at,
        }
        if progress.identifier:
            event["Identifier"] = progress.identifier
        if progress.error and is_done:
            event |= {"ErrorCode": progress.error.code, "StatusMessage": progress.error.message}
        return event

    def _check_type(self, request: Mapping[str, Any]) -> None:
        name = request.get("TypeName")
        if name != cluster_schema.CLUSTER_TYPE:
            raise AwsError(
                "UnsupportedActionException", f"The stand-in emulates {cluster_schema.CLUSTER_TYPE} only, not {name}"
            )

    def _find(self, request: Mapping[str, Any]) -> EmulatedCluster:
        cluster = self._clusters.find(request["Identifier"])
        if cluster is None:
            raise AwsError("ResourceNotFoundException", _not_found(request))
        return cluster

    def _find_idle(self, request: Mapping[str, Any]) -> EmulatedCluster:
        cluster = self._find(request)
        if not cluster.is_settled:
            raise AwsError(
                "ConcurrentOperationException", f"{cluster.arn} is {cluster.status}: wait until it is InService"
            )
        return cluster

    def _desired_state(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            model = json.loads(request["DesiredState"])
        except ValueError as error:
            raise AwsError("ValidationException", f"DesiredState is not JSON: {error}") from error
        return self._valid(model)

    def _patched(self, model: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            patched = jsonpatch.apply_patch(reordered(model, self._order_seed), request["PatchDocument"])
        except (ValueError, jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            raise AwsError("ValidationException", f"Invalid patch document: {error}") from error
        read = reordered(model, self._order_seed)
        changed = cluster_schema.touched(self._schema["createOnlyProperties"], old=read, new=patched)
        if changed:
            raise AwsError(
                "NotUpdatableException",
                f"Invalid patch update: createOnlyProperties [{', '.join(changed)}] cannot be updated",
            )
        return self._valid(patched)

    def _valid(self, model: dict[str, Any]) -> dict[str, Any]:
        problems = cluster_schema.problems(model, region=self._region)
        if problems:
            raise AwsError("ValidationException", "Model validation failed (" + "\n".join(problems) + ")")
        read_only = cluster_schema.touched(self._schema["readOnlyProperties"], old={}, new=model)
        if read_only:
            raise AwsError("ValidationException", f"readOnlyProperties [{', '.join(read_only)}] cannot be specified")
        return model

    def _description(self, cluster: EmulatedCluster) -> dict[str, str]:
        model = reordered(cluster.model, self._order_seed)
        groups = [
            {**group, "CurrentCount": len(cluster.nodes_of(group["InstanceGroupName"]))}
            for group in model["InstanceGroups"]
        ]
        properties = {
            **model,
            "InstanceGroups": groups,
            "ClusterArn": cluster.arn,
            "ClusterStatus": cluster.status,
            "CreationTime": datetime.fromtimestamp(cluster.created_at, timezone.utc).isoformat(),
        }
        return {"Identifier": cluster.arn, "Properties": json.dumps(properties)}

    @property
    def _schema(self) -> dict[str, Any]:
        return cluster_schema.schema(self._region)


def _not_found(request: Mapping[str, Any]) -> str:
    return f"Resource of type '{cluster_schema.CLUSTER_TYPE}' with identifier '{request['Identifier']}' was not found."
