"""The HTTP server of the AWS stand-in: route each request to its service, one at a time.

One lock around everything makes the account consistent and moto, which has no locks of its own, safe.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.utilities.utils import get_partition
from waitress.channel import ClientDisconnected
from werkzeug.wrappers import Response

from podwright_common.process import exit_with_parent
from podwright_rehearsal.aws import clock, cluster_schema, interruption, moto_patches, principals, simulation
from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.call import Call
from podwright_rehearsal.aws.cloud_control import CloudControl
from podwright_rehearsal.aws.contents import Contents
from podwright_rehearsal.aws.file_systems import FileSystems
from podwright_rehearsal.aws.gate import KEY_VARIABLE, PRINCIPAL, Gate, Server
from podwright_rehearsal.aws.hyperpod import EmulatedClusters
from podwright_rehearsal.aws.permission import PERMISSIONS_PATH, Permission
from podwright_rehearsal.aws.principals import Principal
from podwright_rehearsal.aws.quotas import Quotas
from podwright_rehearsal.aws.required_permissions import Requirement
from podwright_rehearsal.aws.retries import RetryCache
from podwright_rehearsal.aws.sagemaker import SageMaker
from podwright_rehearsal.aws.sessions import Sessions
from podwright_rehearsal.aws.tagging import Tagging
from podwright_rehearsal.aws.training_plans import TrainingPlans

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOST = "127.0.0.1"
OWNER_POLL_S = 0.5
THREADS = 32  # more than Terraform and the rehearsal ever ask at once
MAX_CONNECTIONS = 1000
MAX_BODY_BYTES = 256 * 1024 * 1024  # SDKs upload larger objects in parts of 5 or 8 MiB
REFUSED = "AccessDenied"  # no SDK tries again after it
CHANGING_HANDLERS = ("CreateResource", "UpdateResource", "DeleteResource")

Operations = Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]
_log = logging.getLogger("podwright_rehearsal.aws")


def serve(
    *,
    region: str,
    other_regions: Sequence[str] = (),
    storage: Path | None = None,
    port: int,
    transition_s: float,
    instant_deletion: bool,
    order_seed: int | None = None,
    owner_pid: int | None = None,
) -> None:
    """Answer until terminated, or until the owner process has ended. The first line printed is the endpoint's URL."""
    application = Application(
        region=region,
        other_regions=other_regions,
        storage=storage,
        transition_s=transition_s,
        instant_deletion=instant_deletion,
        order_seed=order_seed,
    )
    server = Server(
        Gate(
            interruption.LateAnswers(RetryCache(application)),
            access_key=os.environ[KEY_VARIABLE],
            partition=get_partition(region),
        ),
        host=HOST,
        port=port,
        threads=THREADS,
        connection_limit=MAX_CONNECTIONS,
        max_request_body_size=MAX_BODY_BYTES,
        expose_tracebacks=True,
    )
    if owner_pid is not None:
        exit_with_parent(owner_pid, poll_s=OWNER_POLL_S)
    _log.info("lists without an order are read in the order of seed %s", order_seed)
    print(f"http://{HOST}:{server.effective_port}", flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # who reads the URL need not read on: moto prints too
    server.run()


class Application:
    """The WSGI application.

    Args:
        region: region of tests and rehearsals.
        other_regions: regions beside it; a call to any other is refused.
        storage: the folder with the files of file systems and backups. Default: they have no files.
        transition_s: how long what takes minutes in AWS takes here.
        instant_deletion: see ``FileSystems``.
        order_seed: see ``CloudControl``.
    """

    def __init__(
        self,
        *,
        region: str,
        other_regions: Sequence[str],
        storage: Path | None,
        transition_s: float,
        instant_deletion: bool,
        order_seed: int | None,
    ) -> None:
        moto_patches.install()
        self._regions = (region, *other_regions)
        self._file_systems: dict[str, FileSystems] = {}
        self._clusters: dict[str, EmulatedClusters] = {}  # The region's clusters, by region.
        self._control: dict[str, CloudControl] = {}  # The region's Cloud Control, by region.
        self._tagging: dict[str, Tagging] = {}
        self._permissions: dict[Permission, None] = {}  # Those that principals needed, in the order of their calls.
        contents = Contents(storage)

        def services(region: str) -> dict[str, Operations]:
            account = Account(region=region)
            plans = TrainingPlans(account=account)
            clusters = EmulatedClusters(account=account, plans=plans, transition_s=transition_s)
            self._clusters[region] = clusters
            file_systems = FileSystems(
                account=account,
                transition_s=transition_s,
                instant_deletion=instant_deletion,
                contents=contents,
                elsewhere=self._file_systems_of,
            )
            self._file_systems[region] = file_systems
            control = CloudControl(clusters=clusters, region=region, transition_s=transition_s, order_seed=order_seed)
            self._control[region] = control
            self._tagging[region] = tagging = Tagging(account=account, clusters=clusters, file_systems=file_systems)
            return {
                "CloudApiService": control.operations,
                "AWSSimbaAPIService_v20180301": file_systems.operations,
                "SageMaker": {**SageMaker(clusters=clusters, region=region).operations, **plans.operations},
                "AmazonSSM": Sessions(account=account, clusters=clusters).operations,
                "ServiceQuotasV20190624": Quotas(account=account).operations,
                "ResourceGroupsTaggingAPI_20170126": tagging.operations,
            }

        # By region, then by the service part of X-Amz-Target.
        self._services = {name: services(name) for name in self._regions}
        self._lock = threading.Lock()
        self._interruption = interruption.Interruption()
        self._refusals: dict[str, interruption.Refusal] = {}  # The refusal, by the call's name.
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._controls = {
            interruption.PATH: self._interrupt,
            interruption.REFUSAL_PATH: self._refuse,
            interruption.FAULT_PATH: self._fault,
            interruption.EVENT_PATH: self._event,
            PERMISSIONS_PATH: self._list_permissions,
            clock.PATH: _turn_clock,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request; its body is read before the lock is taken."""
        environ["RAW_URI"] = environ["REQUEST_URI"]  # moto's name for the path as it was sent
        call = Call.of(environ)
        with self._lock:
            if control := self._controls.get(environ["PATH_INFO"]):
                return control(call)(environ, start_response)
            fate = self._interruption.strike(call.name) if call.changes_something else None
            answer = (
                self._refusal(call, interrupted=fate == "refused")
                or self._denial(call, environ.get(PRINCIPAL))
                or self._answer(call)
                or self._moto
            )
            environ[interruption.LATE] = fate == "answers late"
            answered = answer(environ, call.logging(start_response))
            if fate == "answer lost":
                _log.info("%s: the answer is lost", call.name)
                raise ClientDisconnected  # Waitress then closes the connection.
            return answered

    def _interrupt(self, call: Call) -> Response:
        """Set an interruption on PUT; return it with the calls counted since on GET."""
        if call.method == "PUT":
            self._interruption = interruption.Interruption(**json.loads(call.body))
        return _json(200, asdict(self._interruption))

    def _refuse(self, call: Call) -> Response:
        refusal = interruption.Refusal(**json.loads(call.body))
        self._refusals[refusal.call] = refusal
        return _json(200, asdict(refusal))

    def _fault(self, call: Call) -> Response:
        """Keep a cluster or node in a state, in whichever region it is."""
        return self._change_cluster(EmulatedClusters.put_fault, call)

    def _event(self, call: Call) -> Response:
        """Record an event of a cluster or node, in whichever region it is."""
        return self._change_cluster(EmulatedClusters.put_event, call)

    def _change_cluster(self, change: Callable[..., None], call: Call) -> Response:
        arguments = json.loads(call.body)
        name, regions = arguments["cluster"], self._clusters.values()
        owner = next((clusters for clusters in regions if clusters.find(name)), self._clusters[self._regions[0]])
        try:
            change(owner, **arguments)
        except LookupError as error:
            return _json(404, {"unknown": str(error)})
        except AwsError as error:
            return _json(400, {"invalid": error.message})
        return _json(200, arguments)

    def _refusal(self, call: Call, *, interrupted: bool) -> Response | None:
        """Return the error that a test requested, or None."""
        if interrupted:
            return _error(call, AwsError(REFUSED, f"{call.name} is refused: an interruption was requested"))
        due = next((refusal for refusal in self._refusals.values() if refusal.strike(call.name)), None)
        return _error(call, AwsError(due.code, due.message)) if due else None

    def _denial(self, call: Call, caller: Principal | None) -> Response | None:
        """Return IAM's refusal, or None if the caller may do this; the run's access key may do everything.

        What a handler of Cloud Control may not do makes its request fail later with the HandlerErrorCode that AWS has
        for it; reading fails at once, which is a guess.
        """
        for control in self._control.values():
            control.denial = ""
        if caller is None:
            return None
        permissions = list(Requirement(call, cluster_arn=self._cluster_arn(call)).permissions())
        self._permissions.update(dict.fromkeys(permissions))
        with_tags = map(self._with_tags, permissions) if caller.reads_tags else permissions
        denied = principals.first_denial(caller, with_tags)
        if denied is None:
            return None
        permission, message = denied
        if permission.by_handler and call.operation in CHANGING_HANDLERS and call.region in self._control:
            self._control[call.region].denial = message
            return None
        _log.info("%s is denied: %s", call.name, message)
        return _error(call, principals.error(call.service, message))

    def _with_tags(self, permission: Permission) -> Permission:
        """Add the tags of the resource to the context of its permission."""
        region = permission.resource.split(":")[3] if permission.resource.startswith("arn:") else ""
        tagged = self._tagging[region].tags(permission.resource) if region in self._tagging else {}
        tags = {f"aws:resourcetag/{key.lower()}": [value] for key, value in tagged.items()}
        return replace(permission, context={**permission.context, **tags})

    def _cluster_arn(self, call: Call) -> str:
        """Return the ARN of the cluster that a call of SageMaker or Cloud Control names; ``*`` if there is none."""
        if call.target not in {"SageMaker", "CloudApiService"}:
            return "*"
        request = json.loads(call.body or b"{}")
        name = request.get("ClusterName") or request.get("ClusterArn") or request.get("Identifier") or ""
        clusters = self._clusters.get(call.region)
        cluster = clusters.find(name) if clusters else None
        return cluster.arn if cluster else "*"

    def _list_permissions(self, _call: Call) -> Response:
        """Return what principals needed so far."""
        return _json(200, {"permissions": [asdict(permission) for permission in self._permissions]})

    def _answer(self, call: Call) -> Response | None:
        """Return our answer, or None if the request is for moto."""
        if self._is_ours(call):
            if call.region not in self._regions:
                return _json(400, _wrong_region(call.region, self._regions).body())
            return _json_answer(self._services[call.region][call.target], call)
        if (call.service, call.operation) == ("cloudformation", "DescribeType"):
            return self._describe_type(call.form.get("TypeName", ""), call.region)
        if (call.service, call.operation) == ("iam", "SimulatePrincipalPolicy"):
            try:
                return _xml(200, simulation.simulate(call.form))
            except AwsError as error:
                return _error(call, error)
        return None

    def _is_ours(self, call: Call) -> bool:
        """Return True for a service of ours; moto has the rest of SageMaker and of Systems Manager."""
        of_sagemaker = any(resource in call.operation for resource in ("Cluster", "TrainingPlan"))
        mine = {"SageMaker": of_sagemaker, "AmazonSSM": "Session" in call.operation}
        return call.target in self._services[self._regions[0]] and mine.get(call.target, True)

    def _file_systems_of(self, region: str) -> FileSystems:
        """Return a region's FSx.

        Raises:
            AwsError: there is no such region.
        """
        if region not in self._file_systems:
            raise AwsError("InvalidRegion", f"The region {region} is not one of {', '.join(self._regions)}")
        return self._file_systems[region]

    def _describe_type(self, name: str, region: str) -> Response:
        """CloudFormation's DescribeType, with which Terraform validates ``desired_state`` while it plans."""
        if name != cluster_schema.CLUSTER_TYPE:
            return _query_error(
                "TypeNotFoundException", f"The stand-in knows {cluster_schema.CLUSTER_TYPE}, not {name}"
            )
        text = escape(json.dumps(cluster_schema.schema(region)))
        arn = f"arn:aws:cloudformation:{region}::type/resource/{name.replace('::', '-')}"
        return _xml(
            200,
            f'<DescribeTypeResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeTypeResult>'
            f"<Arn>{arn}</Arn><Type>RESOURCE</Type><TypeName>{name}</TypeName><Schema>{text}</Schema>"
            f"<DeprecatedStatus>LIVE</DeprecatedStatus><Visibility>PUBLIC</Visibility></DescribeTypeResult>"
            f"<ResponseMetadata><RequestId>{_request_id()}</RequestId></ResponseMetadata></DescribeTypeResponse>",
        )


def _json_answer(operations: Operations, call: Call) -> Response:
    """Answer in AWS's JSON protocols (1.0 and 1.1)."""
    handle = operations.get(call.operation)
    if handle is None:
        return _json(
            400, AwsError("UnknownOperationException", f"The stand-in does not implement {call.operation}").body()
        )
    try:
        return _json(200, handle(json.loads(call.body or b"{}")))
    except AwsError as error:
        _log.info("%s refused: %s", call.operation, error)
        return _json(400, error.body())


def _turn_clock(call: Call) -> Response:
    change = json.loads(call.body)
    (clock.stop if change["stopped"] else clock.resume)()
    return _json(200, change)


def _json(status: int, answer: Mapping[str, Any]) -> Response:
    headers = {"x-amzn-RequestId": _request_id()}
    return Response(json.dumps(answer), status, headers, content_type="application/x-amz-json-1.1")


def _error(call: Call, error: AwsError) -> Response:
    """Return an error in the call's protocol."""
    if call.target or not (call.form or call.service == "s3"):
        return _json(403, error.body())
    text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    if call.service == "ec2":
        text = f"<Response><Errors>{text}</Errors><RequestID>{_request_id()}</RequestID></Response>"
    elif call.service != "s3":
        text = f"<ErrorResponse>{text}<RequestId>{_request_id()}</RequestId></ErrorResponse>"
    return _xml(403, text)


def _query_error(code: str, message: str) -> Response:
    return _xml(
        404,
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        f"<RequestId>{_request_id()}</RequestId></ErrorResponse>",
    )


def _xml(status: int, text: str) -> Response:
    return Response(text, status, content_type="text/xml")


def _wrong_region(region: str, expected: Sequence[str]) -> AwsError:
    """Return the error for a request to another region."""
    return AwsError(
        "InvalidSignatureException",
        f"Credential should be scoped to a valid region: {' or '.join(expected)}, not {region or 'none'}",
    )


def _request_id() -> str:
    return secrets.token_hex(16)
